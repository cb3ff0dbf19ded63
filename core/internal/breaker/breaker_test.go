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
			hangs, answer := s.hangs, s.answer
			s.mu.Unlock()
			if hangs {
				time.Sleep(time.Hour)
			}
			return answer
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

func (s *server) becomes(answer error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// call makes a call with this result.
func (s *server) call(t *testing.T, result error) {
	t.Helper()
	c, err := s.Allow()
	if err != nil {
		t.Fatalf("a call was refused: %v", err)
	}
	c.End(result)
}

// logged reports whether the log has a line with all parts. Nothing logs at the time.
func (s *server) logged(parts ...string) bool {
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

func TestSeveralFailuresInARowOpenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		for range 3 {
			for range breaker.TripAfter - 1 {
				s.call(t, errSilent)
				s.call(t, breaker.ErrNoEvidence)
			}
			s.call(t, nil)
		}
		s.becomes(errSilent)
		for range breaker.TripAfter {
			if s.IsOpen() {
				t.Fatal("it opened too early")
			}
			s.call(t, errSilent)
		}
		_, err := s.Allow()
		if !breaker.Refused(err) || store.CauseOf(err) != store.Timeout || !store.Down(err) {
			t.Errorf("refused with %v", err)
		}
		if want := "lockkeeper: store unavailable: the circuit breaker of tape is open: no reply"; err.Error() != want {
			t.Errorf("says %q, want %q", err, want)
		}
		if !s.logged("level=WARN", "lockkeeper: tape is down; calls fail at once until it replies", "cause=timeout", "address=reel:1") {
			t.Errorf("logged %s", &s.log)
		}
		time.Sleep(time.Second)
		if !s.IsOpen() || s.probes < 2 {
			t.Errorf("it is open: %v, after %d probes that failed", s.IsOpen(), s.probes)
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
		_, err := s.Allow()
		if !breaker.Refused(err) || !errors.Is(err, store.ErrMisconfigured) || store.CauseOf(err) != store.Authentication {
			t.Errorf("refused with %v", err)
		}
		time.Sleep(time.Second) // the probe finds another failure
		if _, err = s.Allow(); !breaker.Refused(err) || errors.Is(err, store.ErrMisconfigured) {
			t.Errorf("then refused with %v", err)
		}
		if errors.Is(err, errSilent) {
			t.Error("a call that was not made has the failure of another")
		}
	})
}

// The result of a call that was made although the breaker is open does not close it.
func TestTheZeroCallDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.becomes(errSilent)
		s.Trip()
		s.call(t, errSilent)
		breaker.Call{}.End(nil)
		if !s.IsOpen() {
			t.Error("it closed")
		}
	})
}

func TestMissesAreProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		miss := func() {
			for range breaker.TripAfter {
				s.Miss()
			}
			synctest.Wait()
		}
		miss()
		if s.probes != 1 || s.IsOpen() {
			t.Fatalf("after %d probes of a server that works it is open: %v", s.probes, s.IsOpen())
		}
		s.becomes(breaker.ErrNoEvidence)
		miss()
		if s.IsOpen() {
			t.Fatal("no evidence opened it")
		}
		s.becomes(errSilent)
		miss()
		if !s.IsOpen() {
			t.Error("a failed probe of misses did not open it")
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
				s.mu.Lock()
				probes := s.probes
				s.mu.Unlock()
				if took := time.Since(began); took > time.Second || probes == 0 {
					t.Errorf("%d probes ended after %v", probes, took)
				}
				time.Sleep(2 * time.Hour) // the last probe's own goroutine
			})
		})
	}
}
