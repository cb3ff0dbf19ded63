package statement

import (
	"context"
	"sync/atomic"
)

// workers are goroutines that run calls, and stay for later ones. The stack of a new goroutine grows
// several times before the client has sent anything, which takes a tenth of a short call.
type workers struct {
	calls chan func()
	idle  atomic.Int64
	most  int64           // how many may be idle
	life  context.Context // idle ones end with it
}

func newWorkers(life context.Context, most int) *workers {
	return &workers{calls: make(chan func()), most: int64(most), life: life}
}

// run runs f in an idle goroutine, or in a new one.
func (w *workers) run(f func()) {
	select {
	case w.calls <- f:
	default:
		go w.work(f)
	}
}

func (w *workers) work(f func()) {
	for {
		f()
		if w.idle.Add(1) > w.most {
			w.idle.Add(-1)
			return
		}
		select {
		case f = <-w.calls:
			w.idle.Add(-1)
		case <-w.life.Done():
			return
		}
	}
}
