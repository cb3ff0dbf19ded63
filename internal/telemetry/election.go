package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const termEndKey = attribute.Key("lockkeeper.election.end")

// TermEnd is the end of a leader's term.
type TermEnd string

// The ends of terms.
const (
	Resigned    TermEnd = "resigned" // also by the end of the campaign's context, or a shutdown
	TermLost    TermEnd = "lost"
	TermExpired TermEnd = "expired"
)

// Election is the telemetry of candidates on the Locker with a name.
type Election struct {
	leading metric.Int64UpDownCounter
	add     []metric.AddOption
	terms   counts[TermEnd]
	logger  *slog.Logger
}

// NewElection returns the telemetry of a candidate on the Locker with this name.
func NewElection(p Providers, logger *slog.Logger, scope, policy string) *Election {
	meter, name := p.meter(scope), policyKey.String(policy)
	return &Election{
		leading: must(meter.Int64UpDownCounter("lockkeeper.election.leading",
			metric.WithDescription("How many roles this process leads in."), metric.WithUnit("{role}"))),
		add: []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(name))},
		terms: newCounts(must(meter.Int64Counter("lockkeeper.election.terms",
			metric.WithDescription("How many terms of leaders have ended in this process."), metric.WithUnit("{term}"))),
			termEndKey, name, Resigned, TermLost, TermExpired),
		logger: logger.With("mechanism", "election", "policy", policy),
	}
}

// Begun records that a term has begun, and Ended that it has ended.
func (e *Election) Begun(ctx context.Context) { e.leads(ctx, 1) }

// Ended records the end of a term, and logs one that others may have ended.
func (e *Election) Ended(ctx context.Context, how TermEnd) {
	e.leads(ctx, -1)
	e.terms.add(ctx, how)
	if how != Resigned {
		e.logger.WarnContext(ctx, "lockkeeper: the term of a leader ended before it resigned", "end", string(how))
	}
}

func (e *Election) leads(ctx context.Context, n int64) {
	if e.leading.Enabled(ctx) {
		e.leading.Add(ctx, n, e.add...)
	}
}

// Failed logs an error of a leader's work.
func (e *Election) Failed(ctx context.Context, err error) {
	e.logger.WarnContext(ctx, "lockkeeper: the work of a leader failed; it campaigns again after the step-down", "error", err)
}
