package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// inbox is the channel on which this process receives pushes about its requests. The store
// subscribes to it once, for its lifetime. Pushes may be lost; heartbeats make up for that.
type inbox struct {
	channels   string // the start of all processes' channels
	process    string // this process's name, 16 characters
	caller     string // process and channels
	channel    string
	subscribed atomic.Bool
	warned     atomic.Bool
	// PUBLISH reports no receivers although messages arrive: behind some proxies, or from a
	// replica.
	uncounted atomic.Bool

	mu         sync.Mutex
	sub        *redis.PubSub
	echoSent   time.Time // zero if it has arrived
	nextEcho   time.Time
	echoLost   bool
	unreceived bool // PUBLISH of the last echo reported no receivers
}

// checkEvery is how often the subscription is checked. An echo that takes longer counts as lost.
const checkEvery = 3 * time.Second

// doubtEvery is how often it is checked while the server does not reply, or PUBLISH reports no
// receivers: after a failover, the subscription may be on a server that sends no pushes any more.
const doubtEvery = 500 * time.Millisecond

// resubscribeAfter is the first pause before a broken subscription is renewed.
const resubscribeAfter = 300 * time.Millisecond

func newInbox(prefix string) *inbox {
	in := &inbox{channels: prefix + ":inbox:", process: rand.Text()[:16]}
	in.channel, in.caller = in.channels+in.process, in.process+in.channels
	return in
}

// recordSubscribed records that the server has confirmed the subscription.
func (in *inbox) recordSubscribed() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.echoSent = time.Time{}
	in.subscribed.Store(true)
}

// broken reports whether pushes do not arrive.
func (in *inbox) broken() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.echoLost || !in.subscribed.Load()
}

// pushMode returns "P" if scripts may treat a PUBLISH without receivers as proof that this process
// is gone, so that they may pass it over, and "-" otherwise. A node of a Cluster counts only its
// own subscribers.
func (s *Store) pushMode() string {
	if _, cluster := s.client.(*redis.ClusterClient); cluster || s.inbox.broken() || s.inbox.uncounted.Load() {
		return "-"
	}
	return "P"
}

// NotifyLost implements store.LeaseRevoker: f is called for holds that RevokeLease ends.
func (s *Store) NotifyLost(f func(id string)) (remove func()) { return s.waiting.NotifyLost(f) }

// listen starts the subscription, in the background.
func (s *Store) listen() {
	s.redis.Start(func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.subscribe()
		}()
		<-s.redis.Life().Done()
		select { // the client may take longer to close a connection; Close does not wait for it
		case <-done:
		case <-time.After(s.config.timeout):
		}
	})
}

// subscribe subscribes, and renews the subscription when it breaks.
func (s *Store) subscribe() {
	in := s.inbox
	wait := resubscribeAfter
	for s.redis.Life().Err() == nil {
		sub := s.subscriber().Subscribe(s.redis.Life(), in.channel)
		in.mu.Lock()
		in.sub = sub
		in.mu.Unlock()
		unhook := context.AfterFunc(s.redis.Life(), func() { _ = sub.Close() })
		err := s.receive(sub)
		unhook()
		_ = sub.Close()
		if in.subscribed.Swap(false) {
			wait = resubscribeAfter
			if s.redis.Life().Err() == nil {
				s.redis.CountReconnect(s.redis.Life())
			}
		}
		if script.Refused(err) && !in.warned.Swap(true) {
			s.config.logger.Warn("lockkeeper: cannot subscribe; waiters poll instead", "error", err)
		}
		backoff.Sleep(s.redis.Life(), wait)
		wait = min(2*wait, checkEvery)
	}
}

// subscriber returns the client to subscribe with. In a Cluster it is a random master, so that a
// later attempt avoids a master that is down. The client's own choice is always the same master.
func (s *Store) subscriber() subscriber {
	if masters, err := s.redis.Masters(s.redis.Life()); err == nil && len(masters) > 1 {
		return masters[mathrand.IntN(len(masters))]
	}
	return s.client
}

type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// receive handles messages until the subscription breaks, or does not reply to a PING.
func (s *Store) receive(sub *redis.PubSub) error {
	asked := false
	for {
		message, err := sub.ReceiveTimeout(s.redis.Life(), checkEvery)
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout():
			if asked {
				return err
			}
			asked = true
			if err := sub.Ping(s.redis.Life()); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		asked = false
		switch m := message.(type) {
		case *redis.Subscription: // earlier pushes are lost
			s.inbox.recordSubscribed()
			s.waiting.Subscribed()
		case *redis.Message:
			for line := range strings.SplitSeq(m.Payload, "\n") {
				if line == "echo" {
					s.inbox.recordEcho()
				} else {
					s.waiting.Pushed(line)
				}
			}
		}
	}
}

// recordEcho records that the echo has arrived.
func (in *inbox) recordEcho() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.echoSent, in.echoLost = time.Time{}, false
	if in.unreceived {
		in.uncounted.Store(true)
	}
}

// recordReceivers records the number of receivers that PUBLISH has reported for an echo.
func (in *inbox) recordReceivers(receivers int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.unreceived = receivers == 0
	switch {
	case !in.unreceived: // only this process subscribes to the channel
		in.uncounted.Store(false)
	case in.echoSent.IsZero(): // it arrived nevertheless
		in.uncounted.Store(true)
	}
}

// checkInbox publishes an echo to the inbox while there are waiters: a subscription may look
// healthy and be on a server that is no longer the master, and an ACL may forbid PUBLISH. If the
// last echo has not arrived, checkInbox renews the subscription, and all waiters send heartbeats
// often. It returns the time of the next check.
func (s *Store) checkInbox() time.Time {
	in := s.inbox
	now := time.Now()
	in.mu.Lock()
	if now.Before(in.nextEcho) || !in.subscribed.Load() {
		next := in.nextEcho
		in.mu.Unlock()
		if next.After(now) {
			return next
		}
		return now.Add(checkEvery)
	}
	lost := !in.echoSent.IsZero()
	if sub := in.sub; lost {
		go func() { _ = sub.Close() }() // may have to wait for a connection
	}
	worsened := lost && !in.echoLost
	in.echoLost = in.echoLost || lost
	in.echoSent, in.unreceived = now, false
	in.mu.Unlock()

	receivers, err := script.Do(s.redis.Life(), s.redis.Whole(), script.Command{Operation: opEcho}, func(ctx context.Context) (int64, error) {
		return s.client.Publish(ctx, in.channel, "echo").Result()
	})
	next := now.Add(checkEvery)
	if err == nil {
		if receivers == 0 && s.pushMode() == "P" {
			next = now.Add(doubtEvery)
		}
		in.recordReceivers(receivers)
	}
	in.mu.Lock()
	if err != nil {
		in.echoSent = time.Time{} // no evidence about the subscription
		if script.Refused(err) {
			worsened = worsened || !in.echoLost
			in.echoLost = true
		} else {
			next = now.Add(doubtEvery)
		}
	}
	in.nextEcho = next
	in.mu.Unlock()
	if worsened {
		s.waiting.BeatNow()
	}
	return next
}
