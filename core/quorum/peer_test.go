package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// peer is a member that fails on command. Call names are acquire, uptime, raise, renew, release and
// verify.
type peer struct {
	mu    sync.Mutex
	store *memstore.Store
	fault func(call string) fault
	calls map[string]int
}

// fault delays a call, loses or carries it out, and delays or loses its reply.
type fault struct {
	before, after time.Duration // whatever the call's context
	hung          bool          // blocks until the context ends
	down          bool          // the request is lost
	lost          bool          // the reply is lost
}

var (
	errDown = fmt.Errorf("%w: fails on command", store.ErrUnavailable)
	errLost = fmt.Errorf("%w: loses its reply on command", store.ErrUnconfirmed)
)

func peerCall[T any](ctx context.Context, p *peer, name string, do func(*memstore.Store) (T, error)) (T, error) {
	var none T
	p.mu.Lock()
	p.calls[name]++
	var f fault
	if p.fault != nil {
		f = p.fault(name)
	}
	p.mu.Unlock()
	time.Sleep(f.before)
	switch {
	case f.hung:
		<-ctx.Done()
		return none, ctx.Err()
	case f.down:
		return none, errDown
	}
	p.mu.Lock()
	st := p.store
	p.mu.Unlock()
	v, err := do(st)
	time.Sleep(f.after)
	if f.lost {
		return none, errLost
	}
	return v, err
}

func (p *peer) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	return peerCall(ctx, p, "acquire", func(s *memstore.Store) (store.LeaseReply, error) {
		if req.Fences != 1 || req.Queue {
			return store.LeaseReply{}, errors.New("a request that a member must not get")
		}
		return s.AcquireLease(context.Background(), req) // a sent request arrives
	})
}

func (p *peer) RenewLeases(ctx context.Context, reqs []store.LeaseRef) ([]bool, error) {
	return peerCall(ctx, p, "renew", func(s *memstore.Store) ([]bool, error) { return s.RenewLeases(context.Background(), reqs) })
}

func (p *peer) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	return peerCall(ctx, p, "release", func(s *memstore.Store) ([]store.ReleaseOutcome, error) {
		return s.ReleaseLeases(context.Background(), refs)
	})
}

func (p *peer) VerifyLease(ctx context.Context, req store.LeaseRef) (bool, error) {
	return peerCall(ctx, p, "verify", func(s *memstore.Store) (bool, error) { return s.VerifyLease(context.Background(), req) })
}

func (p *peer) RaiseFence(ctx context.Context, name, key string, least int64) error {
	_, err := peerCall(ctx, p, "raise", func(s *memstore.Store) (struct{}, error) {
		return struct{}{}, s.RaiseFence(context.Background(), name, key, least)
	})
	return err
}

func (p *peer) Uptime(ctx context.Context) (time.Duration, error) {
	return peerCall(ctx, p, "uptime", func(s *memstore.Store) (time.Duration, error) { return s.Uptime(context.Background()) })
}

// fail sets the fault of calls of these names, or of all calls without names.
func (p *peer) fail(f fault, names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = func(call string) fault {
		if len(names) == 0 || slices.Contains(names, call) {
			return f
		}
		return fault{}
	}
}

func (p *peer) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = nil
}

// restart deletes all state of the member.
func (p *peer) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.store.Close()
	p.store = memstore.New()
}

func (p *peer) count(call string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[call]
}

// has reports whether the lock is held on this member.
func (p *peer) has(t *testing.T, key string) bool {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(must(p.store.InspectLease(context.Background(), store.LockKind+"q", key)).Holders) > 0
}

// seize grants the lock of a key to a stranger, on this member.
func (p *peer) seize(t *testing.T, key string, ttl time.Duration) {
	t.Helper()
	req := request(key, fmt.Sprintf("stranger-%d", rand.Int64()), ttl)
	req.Fences, req.Label = 1, "a stranger"
	if reply, err := acquire(context.Background(), p.store, req); err != nil || reply.Outcome != store.Granted {
		t.Fatalf("the stranger got %+v, %v", reply, err)
	}
}
