package storetest

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// leaseScript is a test of Leases that is a sequence of steps, which are words:
//
//	a:2     a request of weight 2, which is called a from here on, is granted at once
//	a:2?    it is queued, and a call awaits it
//	a:2??   it is queued, and no call awaits it
//	a:2!    it would queue, and is refused
//	!2      a request of weight 2 that does not queue is refused
//	-a      a is released, or withdrawn
//	a?      a call awaits a
//	+a      the call that awaits a returns with a grant
//	a/5     a is repeated with a capacity of 5; it waits then, or is granted
//	a/5!    and is refused
//	=4:b,c  4 are in use, and b and c are all that wait
//
// In the first five, W is the whole capacity, and /5 and ~1 after the weight are a capacity and a
// reserve.
type leaseScript struct {
	name     string
	capacity int // of a semaphore; zero for a lock
	steps    string
}

func scripted(scripts []leaseScript) (cases []testCase[store.Leases]) {
	for _, s := range scripts {
		kind := leaseKind{"semaphore", store.SemaphoreKind, s.capacity}
		if s.capacity == 0 {
			kind = aLock
		}
		cases = append(cases, testCase[store.Leases]{kind.name + ": " + s.name, func(t *testing.T, h Harness[store.Leases]) {
			r := scriptRun{newLease(t, h, kind), map[string]store.LeaseRequest{}, map[string]*leaseWait{}}
			for _, word := range strings.Fields(s.steps) {
				r.step(word)
				if t.Failed() {
					t.Fatalf("at %q of %q", word, s.steps)
				}
			}
		}})
	}
	return cases
}

// scriptRun is a run of a script.
type scriptRun struct {
	leaseCase
	reqs  map[string]store.LeaseRequest
	waits map[string]*leaseWait
}

var stepSyntax = regexp.MustCompile(`^(\w*)(:|!)(\d+|W)(?:/(\d+))?(?:~(\d+))?(\??\??!?)$`)

func (r scriptRun) number(text string) int {
	if text == "W" {
		return r.capacity
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func (r scriptRun) step(word string) {
	r.t.Helper()
	if m := stepSyntax.FindStringSubmatch(word); m != nil {
		req := r.request(r.number(m[3]))
		if m[4] != "" {
			req.Capacity = r.number(m[4])
		}
		if m[5] != "" {
			req.Reserve = r.number(m[5])
		}
		r.first(m[1], req, m[2]+m[6])
		return
	}
	switch name := strings.TrimRight(word[1:], "?"); {
	case word[0] == '-':
		r.ends(name)
	case word[0] == '+':
		r.waits[name].granted()
		delete(r.waits, name)
	case word[0] == '=':
		inUse, names, _ := strings.Cut(name, ":")
		var ws []*leaseWait
		for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' }) {
			ws = append(ws, r.waits[name])
		}
		r.waiting(r.number(inUse), ws...)
	case strings.HasSuffix(word, "?"):
		name = strings.TrimSuffix(word, "?")
		r.waits[name] = r.await(r.reqs[name])
	default:
		r.repeat(word)
	}
}

// first makes a new request.
func (r scriptRun) first(name string, req store.LeaseRequest, how string) {
	r.t.Helper()
	switch how {
	case ":":
		r.granted(req)
	case ":?":
		r.waits[name] = r.leaseCase.waits(req)
		req = r.waits[name].req
	case ":??":
		req.Place = r.queued(req).Place
	case ":!":
		if reply := r.acquire(req, store.Taken); reply.QueueFull {
			r.t.Errorf("not for a full queue: %+v", reply)
		}
	case "!":
		r.refused(req)
	}
	r.reqs[name] = req
}

// ends releases or withdraws a request.
func (r scriptRun) ends(name string) {
	r.t.Helper()
	w := r.waits[name]
	if w == nil {
		r.release(r.reqs[name])
		return
	}
	r.withdraw(w.req)
	w.fails(store.ErrWithdrawn)
	delete(r.waits, name)
}

// repeat repeats a request with another capacity.
func (r scriptRun) repeat(word string) {
	r.t.Helper()
	name, capacity, _ := strings.Cut(word, "/")
	capacity, refused := strings.CutSuffix(capacity, "!")
	req := r.reqs[name]
	req.Capacity = r.number(capacity)
	if outcome := r.acquireAny(req).Outcome; refused != (outcome == store.Taken) {
		r.t.Fatalf("AcquireLease: outcome %d", outcome)
	}
	if refused {
		r.waits[name].fails(store.ErrWithdrawn)
		delete(r.waits, name)
	}
	r.reqs[name] = req
}
