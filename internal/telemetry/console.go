package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	actionKey        = attribute.Key("lockkeeper.console.action")
	actionOutcomeKey = attribute.Key("lockkeeper.console.outcome")
)

// actionRefused is the outcome of an action that the operator may not carry out.
const actionRefused = "refused"

// Console records the actions of operators. No key is in it.
type Console struct {
	actions metric.Int64Counter
	logger  *slog.Logger
}

// NewConsole returns the telemetry of a console.
func NewConsole(p Providers, logger *slog.Logger, scope string) *Console {
	return &Console{
		actions: must(p.meter(scope).Int64Counter("lockkeeper.console.actions",
			metric.WithDescription("How many actions of operators there were."), metric.WithUnit("{action}"))),
		logger: logger,
	}
}

// Acted records an action, with the reason on one line.
func (c *Console) Acted(ctx context.Context, kind, policy, operator, why, outcome string) {
	c.add(ctx, kind, outcome)
	c.logger.LogAttrs(ctx, slog.LevelInfo, "lockkeeper: an operator acted", slog.String("action", kind),
		slog.String("policy", policy), slog.String("operator", operator), slog.String("why", why), slog.String("outcome", outcome))
}

// Refused records an action that was not carried out, and the cause.
func (c *Console) Refused(ctx context.Context, kind, policy, operator, cause string) {
	c.add(ctx, kind, actionRefused)
	c.logger.LogAttrs(ctx, slog.LevelWarn, "lockkeeper: an action of an operator is refused", slog.String("action", kind),
		slog.String("policy", policy), slog.String("operator", operator), slog.String("cause", cause))
}

// NotTold records that the application's function failed after an action.
func (c *Console) NotTold(ctx context.Context, kind, policy string, err error) {
	c.logger.LogAttrs(ctx, slog.LevelError, "lockkeeper: OnAction failed after an action", slog.String("action", kind),
		slog.String("policy", policy), slog.Any("error", err))
}

func (c *Console) add(ctx context.Context, kind, outcome string) {
	c.actions.Add(ctx, 1, metric.WithAttributes(actionKey.String(kind), actionOutcomeKey.String(outcome)))
}
