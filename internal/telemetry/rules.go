package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	rulesKey        = attribute.Key("lockkeeper.rules")
	rulesOutcomeKey = attribute.Key("lockkeeper.rules.outcome")
)

// RulesOutcome is the outcome of a load of rules.
type RulesOutcome string

// The outcomes of loads. A document that is in force already is none.
const (
	RulesApplied    RulesOutcome = "applied"
	RulesRefused    RulesOutcome = "refused"    // the document has errors
	RulesFailed     RulesOutcome = "failed"     // a mechanism did not take it
	RulesUnreadable RulesOutcome = "unreadable" // the source has no document, or did not reply
)

// Rules is the telemetry of a document with rules. No text of the document is in it, but for its
// version.
type Rules struct {
	reloads metric.Int64Counter
	adds    map[RulesOutcome][]metric.AddOption
	logger  *slog.Logger
	end     func()
}

// NewRules returns the telemetry of the rules from a source with this name. state returns 0 if the
// source's document is in force, 1 if an earlier one is, and 2 if there is none.
func NewRules(p Providers, logger *slog.Logger, scope, name string, state func() int64) *Rules {
	meter, of := p.meter(scope), rulesKey.String(name)
	t := &Rules{
		reloads: must(meter.Int64Counter("lockkeeper.rules.reloads",
			metric.WithDescription("How many documents with rules were put in force or refused, or could not be read."), metric.WithUnit("{document}"))),
		adds:   make(map[RulesOutcome][]metric.AddOption),
		logger: logger.With("rules", name),
	}
	for _, o := range []RulesOutcome{RulesApplied, RulesRefused, RulesFailed, RulesUnreadable} {
		t.adds[o] = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(of, rulesOutcomeKey.String(string(o))))}
	}
	gauge := must(meter.Int64ObservableGauge("lockkeeper.rules.state",
		metric.WithDescription("Whether the rules of the source are in force: 0, or 1 for earlier ones, or 2 for none."), metric.WithUnit("{state}")))
	own := metric.WithAttributeSet(attribute.NewSet(of))
	t.end = observe(meter, func(o metric.Observer) { o.ObserveInt64(gauge, state(), own) }, gauge)
	return t
}

// Loaded counts a load.
func (t *Rules) Loaded(ctx context.Context, o RulesOutcome) {
	if t.reloads.Enabled(ctx) {
		t.reloads.Add(ctx, 1, t.adds[o]...)
	}
}

// InForce logs a document that was put in force.
func (t *Rules) InForce(ctx context.Context, version string, revision int64, hash string) {
	t.logger.LogAttrs(ctx, slog.LevelInfo, "lockkeeper: rules are in force",
		slog.String("version", version), slog.Int64("revision", revision), slog.String("hash", hash))
}

// Refused logs a document with errors, the first of which is at a place, while the one with this
// version and hash stays in force.
func (t *Rules) Refused(ctx context.Context, version, hash string, errors, line, column int) {
	t.logger.LogAttrs(ctx, slog.LevelWarn, "lockkeeper: rules are stale: the document is refused, and the last good one stays in force",
		slog.String("version", version), slog.String("hash", hash),
		slog.Int("errors", errors), slog.Int("line", line), slog.Int("column", column))
}

// Unreadable logs that the source has no document, or did not reply, for some time.
func (t *Rules) Unreadable(ctx context.Context, version, hash string, absent bool, err error) {
	errorType := "no_document"
	if !absent {
		errorType = ErrorType(err)
	}
	t.logger.LogAttrs(ctx, slog.LevelWarn, "lockkeeper: rules are stale: the document cannot be read, and the last good one stays in force",
		slog.String("version", version), slog.String("hash", hash), slog.String("error.type", errorType))
}

// Failed logs that a mechanism did not take the rules.
func (t *Rules) Failed(ctx context.Context, version, hash string, err error) {
	t.logger.LogAttrs(ctx, slog.LevelError, "lockkeeper: rules are stale: a mechanism did not take the document, and the last good one stays in force",
		slog.String("version", version), slog.String("hash", hash), slog.Any("error", err))
}

// Current logs that the document of the source is in force again.
func (t *Rules) Current(ctx context.Context, version, hash string) {
	t.logger.LogAttrs(ctx, slog.LevelInfo, "lockkeeper: rules are current again", slog.String("version", version), slog.String("hash", hash))
}

// Close stops observing the state.
func (t *Rules) Close() { t.end() }
