package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// repeatEvery is how often what was logged is logged again at most.
const repeatEvery = time.Minute

// DamagedRecord is the message for a record that cannot be read.
const DamagedRecord = "lockkeeper: a record is damaged"

// Repeated logs what may happen with every request: the first time at once, and then once a minute at
// most, with the count since.
type Repeated struct {
	logger  *slog.Logger
	message string

	mu    sync.Mutex
	found int // since it was logged last
	next  time.Time
}

// NewRepeated returns one that logs this message at level ERROR.
func NewRepeated(logger *slog.Logger, message string) *Repeated {
	return &Repeated{logger: logger, message: message}
}

// Found counts one occurrence. The attributes are logged if it is.
func (r *Repeated) Found(ctx context.Context, attributes ...any) {
	now := time.Now()
	r.mu.Lock()
	r.found++
	found := r.found
	due := !now.Before(r.next)
	if due {
		r.found, r.next = 0, now.Add(repeatEvery)
	}
	r.mu.Unlock()
	if due {
		r.logger.ErrorContext(ctx, r.message, append([]any{"times", found}, attributes...)...)
	}
}
