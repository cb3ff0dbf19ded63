package storetest_test

import (
	"context"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

type firstCapacity struct {
	store.Store
	of *sync.Map // by ID
}

func (s firstCapacity) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	first, _ := s.of.LoadOrStore(req.ID, req.Capacity)
	req.Capacity = first.(int)
	return s.Store.AcquirePermits(ctx, req)
}

func (s firstCapacity) AwaitPermits(ctx context.Context, req store.PermitRequest) (store.Grant, error) {
	if first, ok := s.of.Load(req.ID); ok {
		req.Capacity = first.(int)
	}
	return s.Store.AwaitPermits(ctx, req)
}

type queuesPermitTwice struct{ store.Store }

func (s queuesPermitTwice) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	reply, err := s.Store.AcquirePermits(ctx, req)
	if err == nil && reply.Outcome == store.Queued {
		req.ID += "-"
		return s.Store.AcquirePermits(ctx, req)
	}
	return reply, err
}

type permitPlaceEndsWithWait struct{ store.Store }

func (s permitPlaceEndsWithWait) AwaitPermits(ctx context.Context, req store.PermitRequest) (store.Grant, error) {
	grant, err := s.Store.AwaitPermits(ctx, req)
	if err != nil && ctx.Err() != nil {
		_, _ = s.ReleasePermits(context.WithoutCancel(ctx), []store.PermitRef{{Name: req.Name, Key: req.Key, ID: req.ID}})
	}
	return grant, err
}

type forgetsPermitReleases struct{ store.Store }

func (s forgetsPermitReleases) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	reply, err := s.Store.AcquirePermits(ctx, req)
	if err == nil && reply.Outcome == store.Withdrawn {
		req.ID += "-"
		return s.Store.AcquirePermits(ctx, req)
	}
	return reply, err
}

type revivesPermits struct{ store.Store }

func (s revivesPermits) RenewPermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	held, err := s.Store.RenewPermits(ctx, reqs)
	for i := range held {
		held[i] = true
	}
	return held, err
}

type releasesAllOrNone struct{ store.Store }

func (s releasesAllOrNone) ReleasePermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	held, err := s.Store.ReleasePermits(ctx, reqs)
	for i := range held {
		held[i] = held[0]
	}
	return held, err
}

type forgetsReleaseReply struct {
	store.Store
	released *sync.Map // by ID
}

func (s forgetsReleaseReply) ReleasePermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	held, err := s.Store.ReleasePermits(ctx, reqs)
	for i := range held {
		_, again := s.released.LoadOrStore(reqs[i].ID, true)
		held[i] = held[i] && !again
	}
	return held, err
}

type onePermitFence struct{ store.Store }

func (s onePermitFence) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	reply, err := s.Store.AcquirePermits(ctx, req)
	if reply.Fence > 0 {
		reply.Fence = 7
	}
	return reply, err
}

type listsMore struct{ store.Store }

func (s listsMore) ListPermits(ctx context.Context, name string) iter.Seq2[store.SemaphoreState, error] {
	return func(yield func(store.SemaphoreState, error) bool) {
		for _, n := range []string{name, name + "x"} {
			for state, err := range s.Store.ListPermits(ctx, n) {
				if n != name {
					state.Key = strings.Repeat(state.Key, 2)
				}
				if !yield(state, err) {
					return
				}
			}
		}
	}
}

type countsTwice struct {
	store.Store
	n *atomic.Int64
}

func (s countsTwice) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	return s.Store.CountDownLatch(ctx, req, participant+string(rune('a'+s.n.Add(1)%26)))
}

type wakesOne struct {
	store.Store
	awake chan struct{}
}

func (s wakesOne) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	if err := s.Store.AwaitLatch(ctx, req); err != nil {
		return err
	}
	select {
	case s.awake <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type latchNeverExtended struct {
	store.Store
	began *sync.Map // by name
}

func (s latchNeverExtended) InspectLatch(ctx context.Context, req store.LatchRequest) (int, error) {
	if began, ok := s.began.Load(req.Name); ok && time.Since(began.(time.Time)) > req.TTL {
		return 0, nil
	}
	return s.Store.InspectLatch(ctx, req)
}

func (s latchNeverExtended) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	s.began.LoadOrStore(req.Name, time.Now())
	return s.Store.CountDownLatch(ctx, req, participant)
}

type oneCount struct {
	store.Store
	counts *sync.Map // by name
}

func (s oneCount) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	first, _ := s.counts.LoadOrStore(req.Name, req.Count)
	req.Count = first.(int)
	return s.Store.AwaitLatch(ctx, req)
}

type countsRenewed struct{ store.Store }

func (s countsRenewed) RenewPermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	held, err := s.Store.RenewPermits(ctx, reqs)
	for i, req := range reqs {
		if err == nil && held[i] {
			_, err = s.AcquirePermits(ctx, store.PermitRequest{
				Name: req.Name, Key: req.Key, ID: req.ID + "-", Weight: 1, Capacity: store.MaxCapacity, TTL: req.TTL, Barging: true,
			})
		}
	}
	return held, err
}

// keepsWeight releases a weight of one, whatever the permit's weight is.
type keepsWeight struct {
	store.Store
	requests *sync.Map // by ID
}

func (s keepsWeight) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	reply, err := s.Store.AcquirePermits(ctx, req)
	if err == nil && reply.Outcome == store.Granted {
		s.requests.Store(req.ID, req)
	}
	return reply, err
}

func (s keepsWeight) ReleasePermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	held, err := s.Store.ReleasePermits(ctx, reqs)
	for i, req := range reqs {
		found, ok := s.requests.Load(req.ID)
		if !ok || err != nil || !held[i] {
			continue
		}
		if old := found.(store.PermitRequest); old.Weight > 1 {
			old.ID += "-"
			old.Weight--
			old.Barging = true
			_, err = s.Store.AcquirePermits(ctx, old)
		}
	}
	return held, err
}

type renewsTogether struct{ store.Store }

func (s renewsTogether) RenewPermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	held, err := s.Store.RenewPermits(ctx, reqs)
	for i := range held {
		held[i] = held[0]
	}
	return held, err
}

// boundsAgain refuses a queued request if the queue is full.
type boundsAgain struct{ store.Store }

func (s boundsAgain) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	reply, err := s.Store.AcquirePermits(ctx, req)
	if err == nil && reply.Outcome == store.Queued && req.MaxWaiting > 0 && reply.Waiting >= req.MaxWaiting {
		reply.Outcome, reply.QueueFull = store.Taken, true
	}
	return reply, err
}

// looksFirst reads the state before it acquires, so that concurrent calls exceed the capacity.
type looksFirst struct{ store.Store }

func (s looksFirst) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	state, err := s.InspectPermits(ctx, req.Name, req.Key)
	if err == nil && state.Waiting == 0 && state.InUse+req.Weight <= req.Capacity {
		time.Sleep(time.Nanosecond) // until all concurrent calls have read the queue
		req.Capacity++
	}
	return s.Store.AcquirePermits(ctx, req)
}
