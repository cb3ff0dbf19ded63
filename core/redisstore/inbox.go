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

	"github.com/lockkeeper/lockkeeper/core/internal/listeners"
)

// inbox is the channel on which the server tells this process which of its requests have been
// granted. The store subscribes to it once, for its life. Messages may be lost; beats find out.
type inbox struct {
	channel    string
	once       sync.Once
	subscribed atomic.Bool
	warned     atomic.Bool
	uncounted  atomic.Bool // a message that reaches this process is said to reach nobody: behind some proxies

	mu       sync.Mutex
	sub      *redis.PubSub
	echoSent time.Time // zero if it has come back
	nextEcho time.Time
	echoLost bool
	unheard  bool // the last echo was said to reach nobody

	lost listeners.Listeners
}

// checkEvery is how often the subscription is checked. An echo that takes longer is lost.
const checkEvery = 3 * time.Second

func newInbox(prefix string) *inbox {
	return &inbox{channel: prefix + ":inbox:" + rand.Text()}
}

// begin notes that the server has confirmed the subscription.
func (in *inbox) begin() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.echoSent = time.Time{}
	in.subscribed.Store(true)
}

// deaf reports whether messages do not arrive.
func (in *inbox) deaf() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.echoLost || !in.subscribed.Load()
}

// tells returns what a script is told of the inbox: "P" if a message that nobody receives means that
// this process is gone, so that others may have the lock first. A node of a Cluster counts those
// alone who have subscribed at it.
func (s *Store) tells(fair bool) string {
	if _, cluster := s.client.(*redis.ClusterClient); cluster || fair || s.inbox.deaf() || s.inbox.uncounted.Load() {
		return "-"
	}
	return "P"
}

// NotifyLost implements store.Locks: f is told of what ForceUnlock ended.
func (s *Store) NotifyLost(f func(id string)) (remove func()) { return s.inbox.lost.Add(f) }

// listen starts the subscription, in the background.
func (s *Store) listen() {
	s.inbox.once.Do(func() {
		s.start(func() {
			done := make(chan struct{})
			go func() {
				defer close(done)
				s.subscribe()
			}()
			<-s.stop
			select { // the client may take longer to give up a connection; Close does not
			case <-done:
			case <-time.After(s.config.timeout):
			}
		})
	})
}

// subscribe keeps the subscription, and renews it when it breaks.
func (s *Store) subscribe() {
	in := s.inbox
	pause := retryBeat
	for s.life.Err() == nil {
		sub := s.subscriber().Subscribe(s.life, in.channel)
		in.mu.Lock()
		in.sub = sub
		in.mu.Unlock()
		unhook := context.AfterFunc(s.life, func() { _ = sub.Close() })
		err := s.receive(sub)
		unhook()
		_ = sub.Close()
		if in.subscribed.Swap(false) {
			pause = retryBeat
			if s.life.Err() == nil {
				s.telemetry.Reconnect(s.life)
			}
		}
		if isReply(err) && !didNotRun(err) && !in.warned.Swap(true) {
			s.config.logger.Warn("lockkeeper: cannot subscribe; waiters poll instead", "error", err)
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, checkEvery)
		case <-s.stop:
		}
	}
}

// subscriber returns whom to subscribe at. In a Cluster that is any master, and another one if one is
// down; its own choice is always the same.
func (s *Store) subscriber() subscriber {
	if masters, err := s.masters(s.life); err == nil && len(masters) > 1 {
		if master, ok := masters[mathrand.IntN(len(masters))].(subscriber); ok {
			return master
		}
	}
	return s.client
}

type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// receive acts on messages until the subscription breaks, or falls silent.
func (s *Store) receive(sub *redis.PubSub) error {
	asked := false
	for {
		message, err := sub.ReceiveTimeout(s.life, checkEvery)
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout():
			if asked {
				return err
			}
			asked = true
			if err := sub.Ping(s.life); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		asked = false
		switch m := message.(type) {
		case *redis.Subscription: // what was pushed before is lost
			s.inbox.begin()
			s.waiters.hurry(0)
			s.latches.hurry()
		case *redis.Message:
			s.pushed(m.Payload)
		}
	}
}

// pushed acts on a message.
func (s *Store) pushed(message string) {
	what, id, _ := strings.Cut(message, " ")
	switch what {
	case "grant":
		s.waiters.push(id, func(w *waiter) { w.wake() })
	case "beat":
		s.waiters.push(id, func(w *waiter) { w.due = time.Now() })
	case "open":
		s.latches.open(id)
	case "lost":
		s.inbox.lost.Call(id)
	case "echo":
		s.inbox.echoed()
	}
}

// echoed notes that the echo has come back.
func (in *inbox) echoed() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.echoSent, in.echoLost = time.Time{}, false
	if in.unheard {
		in.uncounted.Store(true)
	}
}

// published notes how many an echo has reached, as the server says.
func (in *inbox) published(receivers int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.unheard = receivers == 0; in.unheard && in.echoSent.IsZero() { // and yet it has come back
		in.uncounted.Store(true)
	}
}

// checkInbox sends a message to the inbox, the way that others do, while anybody waits: a
// subscription may look healthy and be on a server that is no longer the master, and an ACL may
// forbid to publish. If the one before has not come back, everybody beats often, on a new
// subscription. It returns when to check again.
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
	in.nextEcho = now.Add(checkEvery)
	lost := !in.echoSent.IsZero()
	if sub := in.sub; lost {
		go func() { _ = sub.Close() }() // which may have to wait for a connection
	}
	worsened := lost && !in.echoLost
	in.echoLost = in.echoLost || lost
	in.echoSent, in.unheard = now, false
	in.mu.Unlock()

	receivers, err := call(s.life, s.nodes.whole, opEcho, ordinary, func(ctx context.Context) (int64, error) {
		return s.client.Publish(ctx, in.channel, "echo").Result()
	})
	if err == nil {
		in.published(receivers)
	} else {
		in.mu.Lock()
		in.echoSent = time.Time{} // says nothing of the subscription
		if isReply(err) && !didNotRun(err) {
			worsened = worsened || !in.echoLost
			in.echoLost = true
		}
		in.mu.Unlock()
	}
	if worsened {
		s.waiters.hurry(0)
	}
	return now.Add(checkEvery)
}
