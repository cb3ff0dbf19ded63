package redisstore

import (
	"testing"
	"testing/synctest"
	"time"
)

// weight is a request with so much work.
type weight struct {
	turn
	n int
}

func (w *weight) work() int { return w.n }

// A request goes in one more call if it has waited for too long: for longer where what is under way
// keeps the server busy, which one more call would not change.
func TestOneMoreCall(t *testing.T) {
	for name, test := range map[string]struct {
		underWay []int
		limit    time.Duration
		after    time.Duration
	}{
		"a server far away":             {[]int{1, 1}, 0, patience + 2*slowWork},
		"a busy server":                 {[]int{100, 28}, 0, patience + 128*slowWork},
		"a busy server, and time":       {[]int{100, 28}, time.Second, patience + 128*slowWork},
		"a busy server, and less time":  {[]int{100, 28}, 8 * time.Millisecond, 2 * time.Millisecond},
		"a busy server, and hardly any": {[]int{100, 28}, 2 * time.Millisecond, patience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, release := 0, make(chan struct{})
				l := &lane[*weight]{few: len(test.underWay), most: len(test.underWay) + 1, maxWork: 128, limit: test.limit}
				l.start = func(f func()) bool { go f(); return true }
				l.take = func(l *lane[*weight], batch []*weight) {
					l.mu.Lock()
					calls++
					l.mu.Unlock()
					<-release
					l.answer(batch, true, func(int, *weight) error { return nil })
				}
				under := func() (int, int) {
					synctest.Wait()
					l.mu.Lock()
					defer l.mu.Unlock()
					return calls, l.working
				}
				add := func(n int) *weight {
					w := &weight{turn{since: time.Now(), ended: make(chan struct{}, 1)}, n}
					if !l.add(w) {
						t.Fatal("too many")
					}
					return w
				}
				var all []*weight
				for _, n := range test.underWay {
					all = append(all, add(n))
				}
				all = append(all, add(1))
				time.Sleep(test.after - 1)
				if n, _ := under(); n != len(test.underWay) {
					t.Errorf("%d calls are under way before it has waited for %v", n, test.after)
				}
				time.Sleep(time.Nanosecond)
				if n, _ := under(); n != len(test.underWay)+1 {
					t.Errorf("%d calls are under way after %v", n, test.after)
				}
				close(release)
				for _, w := range all {
					if <-w.ended; w.err != nil {
						t.Error(w.err)
					}
				}
				if _, working := under(); working != 0 || l.takers != 0 {
					t.Errorf("in the end %d calls with %d work", l.takers, working)
				}
			})
		})
	}
}
