package live

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

func TestDeniedKeysOfACounterThatIsNotStarted(t *testing.T) {
	for _, c := range []*Counter{nil, {}} {
		c.Deny("key")
		if keys := c.DeniedKeys(); keys != nil {
			t.Errorf("it has %v", keys)
		}
	}
	var c Counter
	c.Start()
	c.Deny("key")
	c.Stop()
	if keys := c.DeniedKeys(); keys != nil {
		t.Errorf("after a Stop it has %v", keys)
	}
}

// Few denials are counted exactly, and forgotten after 10 to 20 minutes.
func TestDeniedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Counter
		c.Start()
		defer c.Stop()
		is := func(when string, want ...DeniedKey) {
			t.Helper()
			if got := c.DeniedKeys(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		const window = Slots * SlotLength
		is("at the start")
		request := []byte("key-a") // the memory of a request is used again
		c.Deny(unsafe.String(&request[0], len(request)))
		copy(request, "other")
		for range 3 {
			c.Deny("key-b")
		}
		is("in the first window", DeniedKey{"key-b", 3, 0}, DeniedKey{"key-a", 1, 0})
		time.Sleep(window)
		c.Step()
		for range 4 {
			c.Deny("key-a")
		}
		c.Deny("key-c")
		is("in the second window", DeniedKey{"key-a", 5, 0}, DeniedKey{"key-b", 3, 0}, DeniedKey{"key-c", 1, 0})
		time.Sleep(window - time.Nanosecond)
		is("at its end", DeniedKey{"key-a", 5, 0}, DeniedKey{"key-b", 3, 0}, DeniedKey{"key-c", 1, 0})
		time.Sleep(time.Nanosecond)
		is("in the third window", DeniedKey{"key-a", 4, 0}, DeniedKey{"key-c", 1, 0})
		time.Sleep(3 * window)
		is("long after")
	})
}

// The keys with the most denials are there among any number of others, no count is too low, and
// Excess bounds by how much it is too high.
func TestTheKeysDeniedMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Counter
		c.Start()
		defer c.Stop()
		denials := make(map[string]uint64)
		deny := func(key string) {
			c.Deny(key)
			denials[key]++
		}
		for i := range 20_000 {
			deny(fmt.Sprint("rare-", i))
			if i%10 == 0 {
				deny("first")
				deny("second")
			}
			if i%20 == 0 {
				deny("first")
			}
			if i%500 == 499 {
				time.Sleep(SlotLength) // so that all are counted
				c.Step()
			}
		}
		keys := c.DeniedKeys()
		if len(keys) != MaxDeniedKeys || keys[0].Key != "first" || keys[1].Key != "second" {
			t.Fatalf("%d keys: %v", len(keys), keys[:2])
		}
		for _, k := range keys {
			if real := denials[k.Key]; k.Denials < real || k.Denials-k.Excess > real {
				t.Errorf("%v, and there were %d", k, real)
			}
		}
	})
}

// Of many denials a sample is counted, which adds up to about as many.
func TestASampleOfDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Counter
		c.Start()
		defer c.Stop()
		const denials = 4_000_000
		for i := range denials {
			c.Deny([]string{"often", "often", "often", "less"}[i%4])
		}
		keys := c.DeniedKeys()
		if len(keys) != 2 || keys[0].Key != "often" {
			t.Fatalf("%v", keys)
		}
		for i, want := range []uint64{denials * 3 / 4, denials / 4} {
			// 5 % are six standard deviations of the second key.
			if n := keys[i].Denials; n < want-want/20 || n > want+want/20 {
				t.Errorf("%v, want about %d", keys[i], want)
			}
		}
		time.Sleep(SlotLength)
		c.Step()
		c.Deny("rare")
		if keys := c.DeniedKeys(); len(keys) != 3 || keys[2] != (DeniedKey{"rare", 1, 0}) {
			t.Errorf("in the next slot: %v", keys)
		}
	})
}

func TestAllocationsOfDenials(t *testing.T) {
	var c Counter
	c.Start()
	defer c.Stop()
	if n := testing.AllocsPerRun(100_000, func() { c.Deny("key") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDeny(b *testing.B) {
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = fmt.Sprint("user-", i)
	}
	for name, n := range map[string]int{"off": 0, "one key": 1, "many keys": len(keys)} {
		b.Run(name, func(b *testing.B) {
			var c Counter
			if n > 0 {
				c.Start()
				defer c.Stop()
			}
			for i := 0; b.Loop(); i++ {
				c.Deny(keys[i%max(n, 1)])
			}
		})
	}
}
