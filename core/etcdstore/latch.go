package etcdstore

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// A latch is a key, its head, and one for each participant, all on the lease of the latch. Each new
// participant writes the head, whose value is the lease. The process of the last one deletes the latch
// when its TTL is over; the lease does if that process is dead.

// openings are the latches whose ends this process has to keep.
type openings struct {
	store *Store

	mu   sync.Mutex
	ends map[string]*opening // by head
}

// opening is a latch that ends by this process.
type opening struct {
	revision int64 // of its head
	end      time.Time
	timer    *time.Timer
}

// head is the head of a latch as last read.
type head struct {
	lease clientv3.LeaseID
	mod   int64 // 0 if there is none
}

// CountDownLatch implements store.Latches: a read; and for a new participant a keep-alive of the latch's
// lease, and a write. If its TTL is longer than that lease, all participants are written again.
func (s *Store) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	switch {
	case ctx.Err() != nil && s.life.Err() == nil:
		return 0, ctx.Err()
	case s.hooks.Begun():
		return 0, store.ErrClosed
	}
	if err := s.checkRelease(ctx); err != nil {
		return 0, err
	}
	at := s.latchKey(req.Name)
	of := at + "/" + s.digest("participant", req.Name, participant)
	if err := s.opened.settle(ctx, at); err != nil {
		return 0, err
	}
	began := time.Now()
	for range mostTries {
		h, there, arrived, err := s.latchHead(ctx, at, of)
		if err != nil || there {
			return arrived, err
		}
		was := h
		if h, err = s.keepHead(ctx, was, req.TTL); err != nil {
			return 0, err
		}
		if was.mod != 0 && h.lease != was.lease {
			if h.mod, err = s.carry(ctx, at, was, h.lease); err != nil {
				return 0, err
			}
		}
		arrived, revision, err := s.arrive(ctx, at, of, h)
		switch {
		case err != nil:
			return 0, err
		case arrived < 0: // another process was faster
			continue
		case arrived > store.MaxParticipants:
			if _, err := s.remove(ctx, []deletion{{at: of, created: revision}}); err != nil {
				return 0, err
			}
			return 0, fmt.Errorf("%w: a latch has at most %d participants", store.ErrFull, store.MaxParticipants)
		case revision > 0:
			s.opened.endAt(at, revision, began.Add(req.TTL))
		}
		return arrived, nil
	}
	return 0, errMoved
}

// latchHead reads the head of a latch, and whether a participant is there, and how many are.
func (s *Store) latchHead(ctx context.Context, at, of string) (h head, there bool, arrived int, err error) {
	reply, err := run(ctx, s, opLatches, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).Then(
			clientv3.OpGet(at), clientv3.OpGet(of, clientv3.WithKeysOnly()), clientv3.OpGet(at+"/", clientv3.WithPrefix(), clientv3.WithCountOnly()),
		).Commit()
	})
	if err != nil {
		return head{}, false, 0, err
	}
	if kv := only(reply.Responses[0].GetResponseRange().Kvs); kv != nil {
		id, _ := strconv.ParseInt(string(kv.Value), 10, 64)
		h = head{clientv3.LeaseID(id), kv.ModRevision}
	}
	there = only(reply.Responses[1].GetResponseRange().Kvs) != nil
	return h, there, int(reply.Responses[2].GetResponseRange().Count), nil
}

// keepHead returns a head whose lease lasts for a TTL from now: the one that was read, or one with a new
// lease.
func (s *Store) keepHead(ctx context.Context, h head, ttl time.Duration) (head, error) {
	seconds := int64(math.Ceil(ttl.Seconds())) + slack
	if h.mod == 0 {
		return s.newHead(ctx, seconds, 0)
	}
	alive, err := run(ctx, s, opLatch, func(ctx context.Context, _ bool) (bool, error) {
		reply, err := s.client.KeepAliveOnce(ctx, h.lease)
		if isLeaseGone(err) {
			return false, nil // an answer, and no failure
		}
		return err == nil && reply.TTL >= seconds, err
	})
	if err != nil || alive {
		return h, err
	}
	return s.newHead(ctx, seconds, h.mod)
}

func (s *Store) newHead(ctx context.Context, seconds, mod int64) (head, error) {
	reply, err := run(ctx, s, opLatch, func(ctx context.Context, _ bool) (*clientv3.LeaseGrantResponse, error) {
		return s.client.Grant(ctx, seconds)
	})
	if err != nil {
		return head{}, err
	}
	return head{reply.ID, mod}, nil
}

// carry moves a latch to a lease that lasts for longer than its own, and returns the revision of its head: 0
// if another process has changed that. Otherwise its participants would end with the shorter lease.
func (s *Store) carry(ctx context.Context, at string, from head, to clientv3.LeaseID) (mod int64, err error) {
	on := clientv3.WithLease(to)
	moved, err := run(ctx, s, opLatch, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(at), "=", from.mod)).
			Then(clientv3.OpPut(at, strconv.FormatInt(int64(to), 10), on)).Commit()
	})
	if err != nil || !moved.Succeeded {
		return 0, err
	}
	end := clientv3.GetPrefixRangeEnd(at + "/")
	for next := at + "/"; ; {
		participants, _, err := s.page(ctx, next, end, inTransaction)
		if err != nil {
			return 0, err
		}
		if len(participants) == 0 {
			break
		}
		next = string(participants[len(participants)-1].Key) + "\x00"
		var steps []clientv3.Op
		for _, kv := range participants {
			there := clientv3.Compare(clientv3.CreateRevision(string(kv.Key)), "=", kv.CreateRevision)
			steps = append(steps, clientv3.OpTxn([]clientv3.Cmp{there}, []clientv3.Op{clientv3.OpPut(string(kv.Key), "", on)}, nil))
		}
		if _, err := run(ctx, s, opLatch, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
			return s.client.Txn(ctx).Then(steps...).Commit()
		}); err != nil {
			return 0, err
		}
	}
	return moved.Header.Revision, nil
}

// arrive adds a participant, and returns how many there are: -1 if the head has changed. revision is that of
// the head, or 0 if the participant was there.
func (s *Store) arrive(ctx context.Context, at, of string, h head) (arrived int, revision int64, err error) {
	count := clientv3.OpGet(at+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	reply, err := run(ctx, s, opLatch, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
		reply, err := s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(at), "=", h.mod), clientv3.Compare(clientv3.CreateRevision(of), "=", 0)).
			Then(clientv3.OpPut(of, "", clientv3.WithLease(h.lease)), clientv3.OpPut(at, strconv.FormatInt(int64(h.lease), 10), clientv3.WithLease(h.lease)), count).
			Else(clientv3.OpGet(of, clientv3.WithKeysOnly()), count).Commit()
		if isLeaseGone(err) {
			return nil, nil // an answer, and no failure
		}
		return reply, err
	})
	switch {
	case err != nil:
		return 0, 0, err
	case reply == nil:
		return -1, 0, nil
	case reply.Succeeded:
		return int(reply.Responses[2].GetResponseRange().Count), reply.Header.Revision, nil
	case len(reply.Responses[0].GetResponseRange().Kvs) == 0:
		return -1, 0, nil
	}
	return int(reply.Responses[1].GetResponseRange().Count), 0, nil
}

// endAt deletes a latch at a time, unless there is another participant since.
func (o *openings) endAt(at string, revision int64, end time.Time) {
	s := o.store
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ends == nil {
		o.ends = make(map[string]*opening)
	}
	if old := o.ends[at]; old != nil {
		old.timer.Stop()
	}
	it := &opening{revision: revision, end: end}
	it.timer = time.AfterFunc(time.Until(end), func() {
		s.start(func() {
			pause := backoff.Growing{Min: 20 * time.Millisecond, Max: 500 * time.Millisecond}
			for o.delete(s.life, at, it) != nil && backoff.Sleep(s.life, pause.Next()) {
			}
		})
	})
	o.ends[at] = it
}

// delete deletes a latch, unless it has changed.
func (o *openings) delete(ctx context.Context, at string, it *opening) error {
	s := o.store
	_, err := run(ctx, s, opRelease, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(at), "=", it.revision)).
			Then(clientv3.OpDelete(at), clientv3.OpDelete(at+"/", clientv3.WithPrefix())).Commit()
	})
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ends[at] == it {
		it.timer.Stop()
		delete(o.ends, at)
	}
	return nil
}

// settle deletes a latch whose time is over, if it is one of this process's.
func (o *openings) settle(ctx context.Context, at string) error {
	o.mu.Lock()
	it := o.ends[at]
	o.mu.Unlock()
	if it == nil || time.Now().Before(it.end) {
		return nil
	}
	return o.delete(ctx, at, it)
}

// stop stops all timers.
func (o *openings) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, it := range o.ends {
		it.timer.Stop()
	}
}

// InspectLatch implements store.Latches: one read.
func (s *Store) InspectLatch(ctx context.Context, req store.LatchRequest) (int, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	at := s.latchKey(req.Name)
	if err := s.opened.settle(ctx, at); err != nil {
		return 0, err
	}
	arrived, _, err := s.arrived(ctx, at, opInspect)
	return arrived, err
}

func (s *Store) arrived(ctx context.Context, at string, op operation) (arrived int, revision int64, err error) {
	reply, err := run(ctx, s, op, func(ctx context.Context, _ bool) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, at+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	})
	if err != nil {
		return 0, 0, err
	}
	return int(reply.Count), reply.Header.Revision, nil
}

// silence is how long a server may not reply to a waiting call.
const silence = 5 * time.Second

// AwaitLatch implements store.Latches: a read, and a watch, beside which it reads once a second. If the
// server does not reply for 5 s, the error matches store.ErrUnavailable.
func (s *Store) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	at := s.latchKey(req.Name)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := time.Now()
	var replies <-chan clientv3.WatchResponse
	pause := backoff.Growing{Min: 10 * time.Millisecond, Max: 250 * time.Millisecond}
	for {
		if s.life.Err() != nil || s.hooks.Begun() {
			return store.ErrClosed
		}
		arrived, revision, err := s.arrived(ctx, at, opLatches)
		switch {
		case err == nil && arrived >= req.Count:
			return nil
		case err != nil && (ctx.Err() != nil || time.Since(heard) > silence):
			return err
		case err != nil:
			backoff.Sleep(ctx, pause.Next())
			continue
		}
		heard = time.Now()
		pause.Reset()
		if replies == nil {
			replies = s.watch(ctx, at+"/", true, revision+1)
		}
		beat := time.NewTimer(beatEvery)
		select {
		case reply, ok := <-replies:
			if !ok || reply.Err() != nil {
				replies = nil
				backoff.Sleep(ctx, pause.Next())
			}
		case <-beat.C:
		case <-ctx.Done():
		case <-s.hooks.Over():
		case <-s.life.Done():
		}
		beat.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
