package storetest_test

import (
	"context"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

type roomForOneMore struct{ core.Store }

func (s roomForOneMore) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	req.Capacity++
	return s.Store.AcquirePermits(ctx, req)
}

type weighsNothing struct{ core.Store }

func (s weighsNothing) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	req.Weight = 1
	return s.Store.AcquirePermits(ctx, req)
}

type allBarge struct{ core.Store }

func (s allBarge) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	req.Barging = true
	return s.Store.AcquirePermits(ctx, req)
}

type noneBarges struct{ core.Store }

func (s noneBarges) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	req.Barging = false
	return s.Store.AcquirePermits(ctx, req)
}

type queuesAll struct{ core.Store }

func (s queuesAll) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	req.MaxWaiting = 0
	return s.Store.AcquirePermits(ctx, req)
}

type firstCapacity struct {
	core.Store
	of *sync.Map // by ID
}

func (s firstCapacity) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	first, _ := s.of.LoadOrStore(req.ID, req.Capacity)
	req.Capacity = first.(int)
	return s.Store.AcquirePermits(ctx, req)
}

func (s firstCapacity) AwaitPermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.Grant, error) {
	if first, ok := s.of.Load(req.ID); ok {
		req.Capacity = first.(int)
	}
	return s.Store.AwaitPermits(ctx, req)
}

type queuesPermitTwice struct{ core.Store }

func (s queuesPermitTwice) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	reply, err := s.Store.AcquirePermits(ctx, req)
	if err == nil && reply.Outcome == semaphore.Queued {
		req.ID += "-"
		return s.Store.AcquirePermits(ctx, req)
	}
	return reply, err
}

type permitPlaceEndsWithWait struct{ core.Store }

func (s permitPlaceEndsWithWait) AwaitPermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.Grant, error) {
	grant, err := s.Store.AwaitPermits(ctx, req)
	if err != nil && ctx.Err() != nil {
		_, _ = s.ReleasePermits(context.WithoutCancel(ctx), []semaphore.PermitRequest{{Name: req.Name, Key: req.Key, ID: req.ID}})
	}
	return grant, err
}

type forgetsPermitReleases struct{ core.Store }

func (s forgetsPermitReleases) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	reply, err := s.Store.AcquirePermits(ctx, req)
	if err == nil && reply.Outcome == semaphore.Withdrawn {
		req.ID += "-"
		return s.Store.AcquirePermits(ctx, req)
	}
	return reply, err
}

type revivesPermits struct{ core.Store }

func (s revivesPermits) RenewPermits(ctx context.Context, reqs []semaphore.PermitRequest) ([]bool, error) {
	held, err := s.Store.RenewPermits(ctx, reqs)
	for i := range held {
		held[i] = true
	}
	return held, err
}

type releasesAllOrNone struct{ core.Store }

func (s releasesAllOrNone) ReleasePermits(ctx context.Context, reqs []semaphore.PermitRequest) ([]bool, error) {
	held, err := s.Store.ReleasePermits(ctx, reqs)
	for i := range held {
		held[i] = held[0]
	}
	return held, err
}

type forgetsReleaseReply struct {
	core.Store
	released *sync.Map // by ID
}

func (s forgetsReleaseReply) ReleasePermits(ctx context.Context, reqs []semaphore.PermitRequest) ([]bool, error) {
	held, err := s.Store.ReleasePermits(ctx, reqs)
	for i := range held {
		_, again := s.released.LoadOrStore(reqs[i].ID, true)
		held[i] = held[i] && !again
	}
	return held, err
}

type onePermitFence struct{ core.Store }

func (s onePermitFence) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	reply, err := s.Store.AcquirePermits(ctx, req)
	if reply.Fence > 0 {
		reply.Fence = 7
	}
	return reply, err
}

type listsMore struct{ core.Store }

func (s listsMore) ListPermits(ctx context.Context, name string) iter.Seq2[semaphore.State, error] {
	return func(yield func(semaphore.State, error) bool) {
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
	core.Store
	n *atomic.Int64
}

func (s countsTwice) CountDownLatch(ctx context.Context, req semaphore.LatchRequest, participant string) (int, error) {
	return s.Store.CountDownLatch(ctx, req, participant+string(rune('a'+s.n.Add(1)%26)))
}

type wakesOne struct {
	core.Store
	awake chan struct{}
}

func (s wakesOne) AwaitLatch(ctx context.Context, req semaphore.LatchRequest) error {
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
	core.Store
	began *sync.Map // by name
}

func (s latchNeverExtended) InspectLatch(ctx context.Context, req semaphore.LatchRequest) (int, error) {
	if began, ok := s.began.Load(req.Name); ok && time.Since(began.(time.Time)) > req.TTL {
		return 0, nil
	}
	return s.Store.InspectLatch(ctx, req)
}

func (s latchNeverExtended) CountDownLatch(ctx context.Context, req semaphore.LatchRequest, participant string) (int, error) {
	s.began.LoadOrStore(req.Name, time.Now())
	return s.Store.CountDownLatch(ctx, req, participant)
}

type oneCount struct {
	core.Store
	counts *sync.Map // by name
}

func (s oneCount) AwaitLatch(ctx context.Context, req semaphore.LatchRequest) error {
	first, _ := s.counts.LoadOrStore(req.Name, req.Count)
	req.Count = first.(int)
	return s.Store.AwaitLatch(ctx, req)
}

type countsRenewed struct{ core.Store }

func (s countsRenewed) RenewPermits(ctx context.Context, reqs []semaphore.PermitRequest) ([]bool, error) {
	held, err := s.Store.RenewPermits(ctx, reqs)
	for i, req := range reqs {
		if err == nil && held[i] {
			_, err = s.AcquirePermits(ctx, semaphore.AcquireRequest{
				Name: req.Name, Key: req.Key, ID: req.ID + "-", Weight: 1, Capacity: semaphore.MaxCapacity, TTL: req.TTL, Barging: true,
			})
		}
	}
	return held, err
}

// keepsWeight gives back one of what a permit weighs, whatever that is.
type keepsWeight struct {
	core.Store
	requests *sync.Map // by ID
}

func (s keepsWeight) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	reply, err := s.Store.AcquirePermits(ctx, req)
	if err == nil && reply.Outcome == semaphore.Granted {
		s.requests.Store(req.ID, req)
	}
	return reply, err
}

func (s keepsWeight) ReleasePermits(ctx context.Context, reqs []semaphore.PermitRequest) ([]bool, error) {
	held, err := s.Store.ReleasePermits(ctx, reqs)
	for i, req := range reqs {
		found, ok := s.requests.Load(req.ID)
		if !ok || err != nil || !held[i] {
			continue
		}
		if old := found.(semaphore.AcquireRequest); old.Weight > 1 {
			old.ID += "-"
			old.Weight--
			old.Barging = true
			_, err = s.Store.AcquirePermits(ctx, old)
		}
	}
	return held, err
}

type renewsTogether struct{ core.Store }

func (s renewsTogether) RenewPermits(ctx context.Context, reqs []semaphore.PermitRequest) ([]bool, error) {
	held, err := s.Store.RenewPermits(ctx, reqs)
	for i := range held {
		held[i] = held[0]
	}
	return held, err
}

// boundsAgain refuses a request that has its place already, if the queue is full.
type boundsAgain struct{ core.Store }

func (s boundsAgain) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	reply, err := s.Store.AcquirePermits(ctx, req)
	if err == nil && reply.Outcome == semaphore.Queued && req.MaxWaiting > 0 && reply.Waiting >= req.MaxWaiting {
		reply.Outcome, reply.QueueFull = semaphore.Taken, true
	}
	return reply, err
}

// looksFirst looks whether there is room, and then takes it, by when others may have.
type looksFirst struct{ core.Store }

func (s looksFirst) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	state, err := s.InspectPermits(ctx, req.Name, req.Key)
	if err == nil && state.Waiting == 0 && state.InUse+req.Weight <= req.Capacity {
		time.Sleep(time.Nanosecond) // until all who are about to look have looked
		req.Capacity++
	}
	return s.Store.AcquirePermits(ctx, req)
}
