package presence

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// The keys that each process denied most are hashes in the fleet, unless the process shows them.
func TestDeniedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer func() { _ = st.Close() }()
		limiter, err := tokenbucket.New(st, "api", tokenbucket.PerDay(1))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = limiter.Close() }()
		locker, err := lock.New(st, "stock")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = locker.Close() }()
		hides := start(t, &process{Documents: st}, Service("hides"), Including(st))
		shows := start(t, &process{Documents: st}, Service("shows"), Including(st), ShowKeys())
		defer stop(t, hides)
		defer stop(t, shows)
		const keys = 12
		var shown, hidden []DeniedKey // the one with the most denials first
		for i := range keys {
			key := fmt.Sprint("user-", i)
			for range 1 + keys - i { // the first is allowed
				if _, err := limiter.Allow(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			shown = append(shown, DeniedKey{key, uint64(keys - i), 0})
			hidden = append(hidden, DeniedKey{KeyHash(key), uint64(keys - i), 0})
		}
		is := func(when string, p *Process, want []DeniedKey) {
			t.Helper()
			for i := range p.Mechanisms {
				m := &p.Mechanisms[i]
				switch {
				case m.Kind == "rate_limit" && !slices.Equal(m.DeniedKeys, want):
					t.Errorf("%s, %s has %v, want %v", when, p.Service, m.DeniedKeys, want)
				case m.Kind == "lock" && m.DeniedKeys != nil:
					t.Errorf("%s, a lock has %v", when, m.DeniedKeys)
				}
			}
		}
		self, other := shows.Process(), hides.Process()
		is("at once", &self, shown)
		is("at once", &other, hidden)
		time.Sleep(interval)
		for i, when := range []string{"unwatched", "watched"} {
			all, err := Watch(t.Context(), st)
			if err != nil || len(all) != 2 {
				t.Fatalf("%+v, %v", all, err)
			}
			is(when, &all[0], hidden[:i*maxWrittenKeys])
			is(when, &all[1], shown[:i*maxWrittenKeys])
			time.Sleep(interval)
		}
		time.Sleep(20 * time.Minute)
		self = shows.Process()
		is("after 20 minutes", &self, nil)
	})
}

func TestKeyHash(t *testing.T) {
	// printf %s user-1 | openssl dgst -sha256 -binary | basenc --base64url | cut -c 1-11
	if hash := KeyHash("user-1"); hash != "xsKJ5J6cBbI" {
		t.Errorf("%q", hash)
	}
}

// Keys of clients make no document larger, and take no room from the history.
func TestHostileKeys(t *testing.T) {
	p := Process{Service: "shop", Stores: []Store{{Kind: "redis"}}}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range maxHistories {
		m := Mechanism{Kind: "rate_limit", Name: fmt.Sprint("api-", i)}
		for range 12 {
			m.Slots = append(m.Slots, Slot{Waiting: random.Uint32N(100)})
		}
		p.Mechanisms = append(p.Mechanisms, m)
	}
	without := encodeProcess(&p)
	for i := range p.Mechanisms {
		for n := range 100 {
			key := []byte("\x00\u202e\xff" + strings.Repeat(" ", 315))
			for j := 5; j < len(key); j++ {
				key[j] = byte(random.Uint32())
			}
			k := DeniedKey{string(key), random.Uint64(), uint64(n)}
			p.Mechanisms[i].DeniedKeys = append(p.Mechanisms[i].DeniedKeys, k)
		}
	}
	data, history := encodeProcess(&p), encodeHistory(&p)
	if string(data) != string(without) || len(history) > maxHistory {
		t.Errorf("%d instead of %d bytes, and a history of %d", len(data), len(without), len(history))
	}
	got := decodeProcess(data)
	addHistory(&got, history, 0)
	for i := range got.Mechanisms {
		m, want := &got.Mechanisms[i], &p.Mechanisms[i]
		if !slices.Equal(m.Slots, want.Slots) {
			t.Errorf("%s has %d slots", m.Name, len(m.Slots))
		}
		if n := len(m.DeniedKeys); n == 0 || !slices.Equal(m.DeniedKeys, want.DeniedKeys[:n]) {
			t.Errorf("%s has %d keys: %v", m.Name, n, m.DeniedKeys)
		}
	}
}
