package middleware

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// fiveASecond is a limit whose next token comes after that time.
func fiveASecond(retryAfter time.Duration) tokenbucket.LimitState {
	return tokenbucket.LimitState{Name: "api", Capacity: 5, Window: time.Second, RetryAfter: retryAfter}
}

func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		o := NewRetryOrder()
		tell := func(key string, retryAfter, want time.Duration) {
			t.Helper()
			if got := o.Delay(key, fiveASecond(retryAfter)); got != want {
				t.Errorf("%s is told %v, want %v", key, got, want)
			}
		}
		for k := range 10 {
			tell("k", 200*ms, time.Duration(1+k)*200*ms)
		}
		tell("other", 150*ms, 150*ms)
		time.Sleep(500 * ms) // two have come back, and each has its token
		tell("k", 100*ms, 1700*ms)
		tell("k", 1900*ms, 1900*ms) // a later token is told as it is
		time.Sleep(1900 * ms)
		tell("k", 200*ms, 200*ms) // nobody waits any more
	})
}

// A caller that asks again and again, and does not wait, cannot have others wait for ever. A limit whose tokens
// come rarely has its callers come back about when the first one does.
func TestTheOrderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewRetryOrder()
		for range 10_000 {
			if got := o.Delay("k", fiveASecond(time.Second)); got > time.Second+maxPlaces {
				t.Fatalf("told %v", got)
			}
		}
		time.Sleep(maxPlaces + 2*time.Second)
		if got := o.Delay("k", fiveASecond(time.Second)); got != time.Second {
			t.Errorf("told %v when nobody waits any more", got)
		}
		hourly := tokenbucket.LimitState{Capacity: 1, Window: time.Hour, RetryAfter: time.Minute}
		if first, second := o.Delay("hourly", hourly), o.Delay("hourly", hourly); first != time.Minute || second != time.Minute+maxPlaces {
			t.Errorf("told %v and %v", first, second)
		}
	})
}

// Keys that are refused once, as those of an attacker, take bounded memory, and none after a while. They are not
// kept themselves.
func TestManyKeysInOrder(t *testing.T) {
	o := NewRetryOrder()
	before := heap()
	for i := range 200_000 {
		key := fmt.Sprintf("key-%d", i)
		if got := o.Delay(key, fiveASecond(time.Hour)); got != time.Hour {
			t.Fatalf("%s is told %v", key, got)
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

	synctest.Test(t, func(t *testing.T) { // what is over is removed as others come
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
