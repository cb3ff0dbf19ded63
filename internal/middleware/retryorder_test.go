package middleware

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// fiveASecond returns a limit whose next token is available after that time.
func fiveASecond(retryAfter time.Duration) tokenbucket.LimitState {
	return tokenbucket.LimitState{Name: "api", Capacity: 5, Window: time.Second, RetryAfter: retryAfter}
}

func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		o := NewRetryOrder()
		check := func(key string, retryAfter, want time.Duration) {
			t.Helper()
			if got := o.Delay(key, fiveASecond(retryAfter)); got != want {
				t.Errorf("%s gets %v, want %v", key, got, want)
			}
		}
		for k := range 10 {
			check("k", 200*ms, time.Duration(1+k)*200*ms)
		}
		check("other", 150*ms, 150*ms)
		time.Sleep(500 * ms) // two have come back, and each has its token
		check("k", 100*ms, 1700*ms)
		check("k", 1900*ms, 1900*ms) // the time of a later token
		time.Sleep(1900 * ms)
		check("k", 200*ms, 200*ms) // no waiters are left
	})
}

// A caller that retries at once, again and again, does not delay others without bound. With a rare
// token, all callers retry at about its time.
func TestRetryOrderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewRetryOrder()
		for range 10_000 {
			if got := o.Delay("k", fiveASecond(time.Second)); got > time.Second+maxPlaces {
				t.Fatalf("got %v", got)
			}
		}
		time.Sleep(maxPlaces + 2*time.Second)
		if got := o.Delay("k", fiveASecond(time.Second)); got != time.Second {
			t.Errorf("%v without waiters", got)
		}
		hourly := tokenbucket.LimitState{Capacity: 1, Window: time.Hour, RetryAfter: time.Minute}
		if first, second := o.Delay("hourly", hourly), o.Delay("hourly", hourly); first != time.Minute || second != time.Minute+maxPlaces {
			t.Errorf("got %v and %v", first, second)
		}
	})
}

// Keys that are refused once, as an attacker's, take bounded memory for a bounded time, and are not
// kept as text.
func TestManyKeysInOrder(t *testing.T) {
	o := NewRetryOrder()
	before := heap()
	for i := range 200_000 {
		key := fmt.Sprintf("key-%d", i)
		if got := o.Delay(key, fiveASecond(time.Hour)); got != time.Hour {
			t.Fatalf("%s gets %v", key, got)
		}
	}
	kept := 0
	for i := range o.shards {
		kept += o.shards[i].next.Len()
	}
	if kept > retryShards*keysPerShard {
		t.Errorf("%d keys are kept", kept)
	}
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("they take %d bytes", grown)
	}
	runtime.KeepAlive(o)

	synctest.Test(t, func(t *testing.T) { // expired keys are removed as others are added
		o := NewRetryOrder()
		for i := range 100_000 {
			o.Delay(fmt.Sprint(i), fiveASecond(time.Millisecond))
			time.Sleep(time.Millisecond)
		}
		kept := 0
		for i := range o.shards {
			kept += o.shards[i].next.Len()
		}
		if kept > 5000 {
			t.Errorf("%d keys are kept of 100,000, of which about 200 wait", kept)
		}
	})
}

// heap returns how many bytes are in use.
func heap() int {
	runtime.GC()
	runtime.GC() // what was in pools goes at the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
