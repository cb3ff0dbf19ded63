package election_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/election"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestNewRefuses(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	l := must(lock.New(st, "leaders"))
	defer func() { _ = l.Close() }()
	for name, c := range map[string]struct {
		locker *lock.Locker
		role   string
		opts   []election.Option
	}{
		"a nil locker":       {nil, role, nil},
		"an empty role":      {l, "", nil},
		"a long role":        {l, strings.Repeat("x", 1025), nil},
		"a step-down of 0":   {l, role, []election.Option{election.WithStepDown(0)}},
		"a step-down of 2 h": {l, role, []election.Option{election.WithStepDown(2 * time.Hour)}},
	} {
		if e, err := election.New(c.locker, c.role, c.opts...); err == nil || e != nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if _, err := election.New(l, role, nil, election.WithMeterProvider(nil), election.WithLogger(nil)); err != nil {
		t.Error(err)
	}
}

// An Election is one candidate: until its term is resigned, another Campaign or Run is refused.
func TestOneCandidate(t *testing.T) {
	inBubble(t, func(t *testing.T, first, second process) {
		busy := func(when string) {
			t.Helper()
			_, err := first.Campaign(t.Context())
			wantError(t, "Campaign while it "+when, err, election.ErrCampaigning)
			err = first.Run(t.Context(), nil)
			wantError(t, "Run while it "+when, err, election.ErrCampaigning)
		}
		term := first.campaign(t)
		busy("leads")
		first.store.Break(storetest.Any, storetest.Down)
		<-term.Context().Done()
		time.Sleep(ttl) // the others' clocks end it later
		busy("has not resigned")
		first.store.Mend(storetest.Any)
		wantError(t, "Resign", term.Resign(t.Context()), lock.ErrLost)

		other := second.campaign(t)
		ctx, stop := context.WithCancel(t.Context())
		_, returned := first.run(ctx)
		busy("waits")
		stop()
		wantError(t, "Run", <-returned, context.Canceled)

		// A late Resign of an old term changes nothing of a new one.
		_ = other.Resign(t.Context())
		next := first.campaign(t)
		wantError(t, "the second Resign", term.Resign(t.Context()), lock.ErrReleased)
		busy("leads again")
		wantLeads(t, first, true)
		_ = next.Resign(t.Context())
	})
}

// A candidate that stops waiting leaves no place in the queue.
func TestCampaignEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, first, second process) {
		term := first.campaign(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := second.Campaign(ctx)
		wantError(t, "Campaign", err, context.DeadlineExceeded)
		var held *lock.HeldError
		if !errors.As(err, &held) || held.Holder != "first" {
			t.Errorf("Campaign: %v, want the leader", err)
		}
		running, stop := context.WithCancel(t.Context())
		_, returned := second.run(running)
		if n := first.waiting(t); n != 1 {
			t.Errorf("%d wait", n)
		}
		stop()
		wantError(t, "Run", <-returned, context.Canceled)
		if n := first.waiting(t); n != 0 {
			t.Errorf("%d wait after the end", n)
		}
		if err := term.Verify(t.Context()); err != nil {
			t.Errorf("Verify: %v", err)
		}
		_ = term.Resign(t.Context())
	})
}

// Candidates lead in the order in which they have come, and their fences grow.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := memstore.New()
		defer shared.Close()
		ctx, stop := context.WithCancel(t.Context())
		var led []string
		var last int64
		var all []<-chan error
		for _, name := range []string{"a", "b", "c"} {
			p := newProcess(t, shared, name)
			returned := make(chan error, 1)
			all = append(all, returned)
			go func() {
				returned <- p.Run(ctx, func(ctx context.Context, term *election.Term) error {
					time.Sleep(2 * time.Second)
					led = append(led, must(p.Leader(t.Context())).Label)
					if fence := term.Fence().Number; fence <= last {
						t.Errorf("fence %d after %d", fence, last)
					}
					last = term.Fence().Number
					return nil
				})
			}()
			synctest.Wait()
		}
		time.Sleep(13 * time.Second)
		stop()
		for _, returned := range all {
			wantError(t, "Run", <-returned, context.Canceled)
		}
		if want := []string{"a", "b", "c", "a", "b", "c", "a"}; !slices.Equal(led, want) {
			t.Errorf("%v led, want %v", led, want)
		}
	})
}

// Two candidates of one locker lead one after the other, each with the fence that others see.
func TestCandidatesOfOneLocker(t *testing.T) {
	inBubble(t, func(t *testing.T, first, second process) {
		term := first.campaign(t)
		twin := process{must(election.New(first.locker, role)), first.store, first.locker}
		terms, returned := twin.run(t.Context())
		others, othersReturned := second.run(t.Context())
		_ = term.Resign(t.Context())
		synctest.Wait()
		next := <-terms
		leader := must(second.Leader(t.Context()))
		if leader.Fence != next.Fence().Number || leader.Fence <= term.Fence().Number {
			t.Errorf("the leader is %+v, want fence %v, after %v", leader, next.Fence(), term.Fence())
		}
		wantLeads(t, first, false)
		wantLeads(t, twin, true)
		next.result <- nil
		<-others
		_, _ = first.locker.Close(), second.locker.Close()
		wantError(t, "Run", <-returned, lock.ErrClosed)
		wantError(t, "Run", <-othersReturned, lock.ErrClosed)
	})
}

// A leader that is cut off stops to be one before another leads, without a call of the store.
func TestIsLeaderAfterACutOff(t *testing.T) {
	inBubble(t, func(t *testing.T, first, second process) {
		wantLeads(t, first, false)
		term := first.campaign(t)
		time.Sleep(time.Hour)
		wantLeads(t, first, true)
		first.store.Break(storetest.Any, storetest.Hung)
		cut, calls := time.Now(), first.store.Calls(storetest.InspectLease)
		next := make(chan *election.Term)
		go func() { next <- must(second.Campaign(context.Background())) }()
		for first.IsLeader(t.Context()) == nil && time.Since(cut) < time.Hour {
			time.Sleep(time.Millisecond)
		}
		ended := time.Now()
		wantError(t, "the term", context.Cause(term.Context()), lock.ErrExpired)
		other := <-next
		if !time.Now().After(ended) || time.Since(cut) > ttl+time.Second {
			t.Errorf("the first ended %v after the cut, and the second led after %v", ended.Sub(cut), time.Since(cut))
		}
		if first.store.Calls(storetest.InspectLease) != calls || first.store.Calls(storetest.VerifyLease) != 0 {
			t.Error("IsLeader asks the store")
		}
		first.store.Mend(storetest.Any)
		wantError(t, "Resign", term.Resign(t.Context()), lock.ErrLost)
		_ = other.Resign(t.Context())
	})
}

// Resign ends the term first, and releases the role then.
func TestResign(t *testing.T) {
	inBubble(t, func(t *testing.T, p, _ process) {
		term := p.campaign(t)
		if lease, ok := lock.FromContext(term.Context()); !ok || lease.Fence() != term.Fence() {
			t.Error("the term's context has no lease for pgstore.Bind")
		}
		p.store.Hook(storetest.On(storetest.ReleaseLeases, func() error {
			wantError(t, "the term", context.Cause(term.Context()), lock.ErrReleased)
			wantLeads(t, p, false)
			wantError(t, "Resign beside the first", term.Resign(t.Context()), lock.ErrReleased)
			_, err := p.Campaign(t.Context())
			wantError(t, "Campaign before the release", err, election.ErrCampaigning)
			return nil
		}), nil)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := term.Resign(gone); err != nil || p.store.Calls(storetest.ReleaseLeases) != 1 {
			t.Errorf("Resign: %v, %d releases", err, p.store.Calls(storetest.ReleaseLeases))
		}
		wantError(t, "the second Resign", term.Resign(t.Context()), lock.ErrReleased)
		wantError(t, "Verify", term.Verify(t.Context()), lock.ErrReleased)

		p.store.Hook(nil, nil)
		term = p.campaign(t)
		p.store.Break(storetest.ReleaseLeases, storetest.Down)
		if err := term.Resign(t.Context()); !errors.Is(err, errDown) {
			t.Errorf("Resign while the store is down: %v", err)
		}
		wantLeads(t, p, false)
		p.store.Mend(storetest.Any)
		_ = p.campaign(t).Resign(t.Context()) // after the release in the background
	})
}

// A term that is not renewed ends at its TTL, or at its maximum, and the candidate that runs leads
// again.
func TestTermsThatAreNotRenewed(t *testing.T) {
	for name, c := range map[string]struct {
		option lock.Option
		lasts  time.Duration
	}{
		"WithoutRenewal": {lock.WithoutRenewal(), ttl - ttl/100 - 2*time.Millisecond},
		"WithMaxHold":    {lock.WithMaxHold(time.Hour), time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shared := memstore.New()
				defer shared.Close()
				p := newProcess(t, shared, "p", c.option)
				ctx, stop := context.WithCancel(t.Context())
				terms, returned := p.run(ctx)
				for range 3 {
					began, term := time.Now(), <-terms
					<-term.Context().Done()
					if lasts := time.Since(began); lasts < c.lasts || lasts > c.lasts+time.Second+ttl {
						t.Errorf("a term lasted %v, want %v", lasts, c.lasts)
					}
					wantError(t, "the term", context.Cause(term.Context()), lock.ErrExpired)
					wantLeads(t, p, false)
				}
				stop()
				wantError(t, "Run", <-returned, context.Canceled)
			})
		})
	}
}
