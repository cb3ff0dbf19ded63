package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// repeatEvery is the minimum interval of log lines of a Repeated.
const repeatEvery = time.Minute

const (
	// firstsPeriod is the period of a firsts.
	firstsPeriod = time.Hour
	// maxFirsts bounds the texts of a firsts, and so the log lines.
	maxFirsts = 256
)

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

// firsts finds the first occurrence of each text in a period. Texts beyond a maximum are not found.
type firsts struct {
	mu   sync.Mutex
	seen map[string]bool
	ends time.Time
}

func (f *firsts) first(text string) bool {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !now.Before(f.ends) {
		f.seen, f.ends = make(map[string]bool), now.Add(firstsPeriod)
	}
	if f.seen[text] || len(f.seen) == maxFirsts {
		return false
	}
	f.seen[text] = true
	return true
}
