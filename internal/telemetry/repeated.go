package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// repeatEvery is the minimum interval of log lines of a Repeated.
const repeatEvery = time.Minute

// DamagedRecord is the message for a record that cannot be read.
const DamagedRecord = "lockkeeper: a record is damaged"

// Repeated logs a condition that may affect every request: the first occurrence at once, and then
// at most once a minute, with the count since.
type Repeated struct {
	logger  *slog.Logger
	message string

	mu    sync.Mutex
	found int // since the last log line
	next  time.Time
}

// NewRepeated returns a Repeated that logs this message at level ERROR.
func NewRepeated(logger *slog.Logger, message string) *Repeated {
	return &Repeated{logger: logger, message: message}
}

// Found counts one occurrence. The attributes are used if it is logged.
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
