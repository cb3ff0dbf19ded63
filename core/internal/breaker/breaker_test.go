package breaker_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/store"
)

var (
	errSilent  = errors.New("no reply")
	errRefused = errors.New("refused")
)

// server is a server whose probes get its answer.
type server struct {
	*breaker.Breaker
	mu         sync.Mutex
	answer     error
	hangs      bool
	takes      time.Duration
	probes     int
	log        strings.Builder
	background sync.WaitGroup
	end        context.CancelFunc
}

// newServer returns a server that works, and that Life ends for at the end of the test.
func newServer(t *testing.T) *server {
	s := new(server)
	life, end := context.WithCancel(context.Background())
	s.end = end
	s.Breaker = breaker.New(breaker.Config{
		Server: "tape", Address: "reel:1", Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
		Probe: func() error {
			s.mu.Lock()
			s.probes++
			hangs, takes := s.hangs, s.takes
			s.mu.Unlock()
			if hangs {
				time.Sleep(time.Hour)
			}
			time.Sleep(takes)
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.answer
		},
		IsDecisive: func(err error) bool { return errors.Is(err, errRefused) },
		Explain: func(err error) error {
			if errors.Is(err, errRefused) {
				return store.Misconfigured(store.Authentication, err)
			}
			return store.Unavailable(store.Timeout, err.Error())
		},
		Life: life, Start: func(f func()) bool { s.background.Go(f); return life.Err() == nil },
	})
	t.Cleanup(func() { end(); s.background.Wait() })
	return s
}

func (s *server) probed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.probes
}

func (s *server) becomes(answer error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// call makes a call with this result.
func (s *server) call(t *testing.T, result error) {
	t.Helper()
	c, err := s.Allow(false)
	if err != nil {
		t.Fatalf("a call was refused: %v", err)
	}
	c.End(result)
}

// logged reports whether the log has a line with all parts.
func (s *server) logged(parts ...string) bool {
	synctest.Wait() // nothing logs at the time
	for line := range strings.Lines(s.log.String()) {
		has := true
		for _, part := range parts {
			has = has && strings.Contains(line, part)
		}
		if has {
			return true
		}
	}
	return false
}

// A failure has a new connection asked at once, and only what that says opens the breaker.
func TestAFailureIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		for i := range 10 {
			s.call(t, errSilent)
			synctest.Wait()
			if s.IsOpen() || s.probed() != i+1 {
				t.Fatalf("after %d probes of a server that works it is open: %v", s.probed(), s.IsOpen())
			}
			time.Sleep(time.Second)
		}
		s.becomes(breaker.ErrNoEvidence)
		s.call(t, errSilent)
		synctest.Wait()
		s.call(t, breaker.ErrNoEvidence)
		s.call(t, nil)
		synctest.Wait()
		if s.IsOpen() || s.probed() != 11 {
			t.Fatalf("no evidence: after %d probes it is open: %v", s.probed(), s.IsOpen())
		}
		s.becomes(errSilent)
		s.call(t, errSilent)
		synctest.Wait()
		_, err := s.Allow(false)
		if !breaker.Refused(err) || store.CauseOf(err) != store.Timeout || !store.Down(err) {
			t.Errorf("refused with %v", err)
		}
		if want := "lockkeeper: store unavailable: the circuit breaker of tape is open: no reply"; err == nil || err.Error() != want {
			t.Errorf("says %v, want %q", err, want)
		}
		if !s.logged("level=WARN", "lockkeeper: tape is down; calls fail at once until it replies", "cause=timeout", "address=reel:1") {
			t.Errorf("logged %s", &s.log)
		}
		before := s.probed()
		time.Sleep(time.Second)
		if n := s.probed() - before; !s.IsOpen() || n < 3 || n > 5 {
			t.Errorf("it is open: %v, after %d probes in a second", s.IsOpen(), n)
		}
		s.becomes(nil)
		time.Sleep(time.Second)
		s.call(t, nil)
		if !s.logged("level=INFO", "lockkeeper: tape replies again", "address=reel:1") {
			t.Errorf("logged %s", &s.log)
		}
	})
}

func TestADecisiveFailureOpensItAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.becomes(errSilent)
		s.call(t, errRefused)
		_, err := s.Allow(false)
		if !breaker.Refused(err) || !errors.Is(err, store.ErrMisconfigured) || store.CauseOf(err) != store.Authentication {
			t.Errorf("refused with %v", err)
		}
		time.Sleep(time.Second) // the probe finds another failure
		if _, err = s.Allow(false); !breaker.Refused(err) || errors.Is(err, store.ErrMisconfigured) {
			t.Errorf("then refused with %v", err)
		}
		if errors.Is(err, errSilent) {
			t.Error("a call that was not made has the failure of another")
		}
	})
}

// The result of a call that was made although the breaker is open does not count.
func TestTheZeroCallDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		breaker.Call{}.End(errRefused)
		s.becomes(errSilent)
		s.call(t, errRefused)
		breaker.Call{}.End(nil)
		if !s.IsOpen() {
			t.Error("it closed")
		}
	})
}

// Calls that fail together share a probe. A call that was sent before the latest probe needs no
// other one.
func TestDoubtsShareAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.takes = 10 * time.Millisecond
		sent := time.Now()
		for range 100 {
			s.Doubt(sent)
		}
		time.Sleep(time.Second)
		s.Doubt(sent)
		if err := s.Ask(t.Context(), sent); err != nil {
			t.Errorf("an earlier answer: %v", err)
		}
		synctest.Wait()
		if s.probed() != 1 {
			t.Errorf("%d probes for calls that were sent before the first", s.probed())
		}
		for range 100 { // whose callers leave
			s.Doubt(time.Now())
			time.Sleep(10 * time.Millisecond)
		}
		if s.probed() > 10 {
			t.Errorf("%d probes in a second", s.probed())
		}
	})
}

func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.takes = 10 * time.Millisecond
		for range 3 { // at once, though the last answer is new
			if err := s.Ask(t.Context(), time.Now()); err != nil {
				t.Errorf("the server works: %v", err)
			}
		}
		s.Doubt(time.Now())
		time.Sleep(5 * time.Millisecond) // a probe is in flight that has begun before
		before := s.probed()
		if err := s.Ask(t.Context(), time.Now()); err != nil || s.probed() != before+1 {
			t.Errorf("%v, after %d more probes", err, s.probed()-before)
		}
		s.becomes(breaker.ErrNoEvidence)
		s.Doubt(time.Now())
		time.Sleep(5 * time.Millisecond) // a probe is in flight that finds out nothing
		before = s.probed()
		if err := s.Ask(t.Context(), time.Now()); !errors.Is(err, breaker.ErrNoEvidence) {
			t.Errorf("nothing is known: %v", err)
		}
		time.Sleep(time.Second)
		if s.probed() != before+1 {
			t.Errorf("%d more probes for a call that was sent later", s.probed()-before)
		}
		s.becomes(nil)
		left, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		if err := s.Ask(left, time.Now()); !errors.Is(err, breaker.ErrNoEvidence) {
			t.Errorf("the caller has left: %v", err)
		}
		s.becomes(errSilent)
		for range 2 {
			if err := s.Ask(t.Context(), time.Now()); !breaker.Refused(err) {
				t.Errorf("the server is down: %v", err)
			}
		}
	})
}

func TestProbesEnd(t *testing.T) {
	for name, end := range map[string]func(*server){
		"with the life of the client":   func(s *server) { s.end() },
		"when the server is not used":   func(s *server) { s.Stop() },
		"although a probe has no reply": func(s *server) { s.mu.Lock(); s.hangs = true; s.mu.Unlock(); time.Sleep(time.Second); s.end() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.becomes(errSilent)
				s.call(t, errRefused)
				time.Sleep(time.Second)
				end(s)
				began := time.Now()
				s.background.Wait()
				probes := s.probed()
				if took := time.Since(began); took > time.Second || probes == 0 {
					t.Errorf("%d probes ended after %v", probes, took)
				}
				time.Sleep(2 * time.Hour) // the last probe's own goroutine
			})
		})
	}
}
