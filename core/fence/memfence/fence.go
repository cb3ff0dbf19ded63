// Package memfence keeps the marks of resources in process memory, for resources that only this
// process writes to:
//
//	files, err := memfence.New()
//	…
//	mux.Handle("PUT /files/{name}", fenced.New(files, nethttp.ByPathValue("name"))(save))
//
// Marks end with the process: after a restart the oldest token passes, until a newer one has been
// seen.
package memfence

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
)

// Fence is a [fence.Checker] that keeps a mark for each key. It starts no goroutine. All methods
// may be called concurrently.
//
// A mark is kept for [WithTTL] after the last call for its key, refused or not, by the process's
// monotonic clock. There are at most [WithMaxMarks] of them, and none is removed early to make room
// for another.
type Fence struct {
	start time.Time
	ttl   time.Duration

	mu    sync.Mutex
	marks expiry.Table[string, fence.Mark]
}

var _ fence.Checker = (*Fence)(nil)

// Option is an optional setting of [New].
type Option func(*config)

type config struct {
	ttl      time.Duration
	maxMarks int
}

// WithTTL sets how long a mark is kept after the last call for its key: 24 h by default, 1 s to 366
// days. It must be longer than any pause of a holder, or delay of its request, before a write: once
// the mark has expired, the oldest token passes.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithMaxMarks sets the maximum number of marks: 1,048,576 by default. A mark takes up to 90 bytes
// plus its key.
func WithMaxMarks(n int) Option { return func(c *config) { c.maxMarks = n } }

// New returns a fence without marks. It returns an error for an option out of its range.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
func New(opts ...Option) (*Fence, error) {
	c := config{ttl: 24 * time.Hour, maxMarks: 1 << 20}
	option.Apply(&c, opts)
	switch {
	case c.ttl < time.Second || c.ttl > 366*24*time.Hour:
		return nil, fmt.Errorf("memfence: New: a ttl of %v is not between 1s and 366 days", c.ttl)
	case c.maxMarks < 1:
		return nil, fmt.Errorf("memfence: New: %d marks at most is not positive", c.maxMarks)
	}
	return &Fence{start: time.Now(), ttl: c.ttl, marks: expiry.NewTable[string, fence.Mark](c.maxMarks, nil)}, nil
}

// Check admits a token or refuses it, by the rule of [fence.Mark]. A newer token may have passed
// when the caller acts on it: a [fence.Gate] delays that one until the caller has written.
//
// An error matches [fence.ErrStale] or [fence.ErrInvalid]; [fence.ErrInvalidKey] for a key that is
// empty or longer than 1,024 bytes; store.ErrFull, and so store.ErrUnavailable, for a new key if
// there is no room for its mark; or is the context's.
func (f *Fence) Check(ctx context.Context, key string, t fence.Token) error {
	if err := naming.CheckKey(key); err != nil {
		return fmt.Errorf("%w: %w", fence.ErrInvalidKey, err)
	}
	mark, err := fence.Mark(0).Admit(t)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := int64(time.Since(f.start))
	expires := now + int64(f.ttl)
	if e := f.marks.Get(key, now); e != nil {
		e.Expires = expires // old holders are active: keep the mark
		e.Value, err = e.Value.Admit(t)
		return err
	}
	if mark == 0 { // a shared token sets no mark
		return nil
	}
	if !f.marks.Room(1, now) {
		return fmt.Errorf("%w: %d marks are kept", store.ErrFull, f.marks.Len())
	}
	// A substring of a request would keep the whole request in memory.
	f.marks.Add(strings.Clone(key), mark, expires, now)
	return nil
}
