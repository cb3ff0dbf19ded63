package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// damageEvery is how often damage is logged at most.
const damageEvery = time.Minute

// Damage logs records that are damaged: the first at once, and then what has been found since, once a
// minute at most, however often the same one is asked for.
type Damage struct {
	logger *slog.Logger

	mu    sync.Mutex
	found int // since it was logged last
	next  time.Time
}

// NewDamage returns one that logs there.
func NewDamage(logger *slog.Logger) *Damage { return &Damage{logger: logger} }

// Found is told of a record that is damaged.
func (d *Damage) Found(ctx context.Context) {
	now := time.Now()
	d.mu.Lock()
	d.found++
	found := d.found
	due := !now.Before(d.next)
	if due {
		d.found, d.next = 0, now.Add(damageEvery)
	}
	d.mu.Unlock()
	if due {
		d.logger.ErrorContext(ctx, "lockkeeper: a record is damaged", "times", found)
	}
}
