package bucketmodel

import (
	"errors"
	"math/big"
	"time"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// limit is a limit of a plan in the model.
type limit struct {
	name             string
	burst, overdraft int64
	ns               int64    // the interval of a store: in whole nanoseconds, rounded up
	exact            *big.Rat // the interval in ns
}

func (l *limit) interval(slow bool) *big.Rat {
	if slow {
		return rat(l.ns)
	}
	return l.exact
}

// bound is the least or the most that a bucket may owe.
type bound struct {
	interval *big.Rat
	gone     *big.Rat // when nothing is owed any more, in ns
}

// stored is a bucket, as a store may keep it.
type stored struct {
	ns          int64 // the interval that it was charged at
	least, most *bound
}

// owed returns how many tokens a bound of a bucket owes to a limit: of a bucket that was charged at
// another interval as many tokens, but no more than the burst.
func (l *limit) owed(b *stored, slow bool, now int64) *big.Rat {
	if b == nil {
		return rat(0)
	}
	side, largest := b.least, l.burst+l.overdraft
	if slow {
		side = b.most
	}
	debt := new(big.Rat).Sub(side.gone, rat(now))
	if debt.Sign() <= 0 {
		return rat(0)
	}
	tokens := new(big.Rat).Quo(debt, side.interval)
	if b.ns != l.ns {
		largest = l.burst
		// Stores convert in numbers of 53 bits, and round up to a nanosecond.
		rounding := new(big.Rat).Mul(tokens, big.NewRat(1, 1_000_000_000_000))
		if slow {
			tokens.Add(tokens, rounding).Add(tokens, new(big.Rat).Quo(rat(2), l.exact))
		} else {
			tokens.Sub(tokens, rounding)
		}
	}
	if tokens.Cmp(rat(largest)) > 0 {
		return rat(largest)
	}
	return tokens
}

// set makes a bucket owe so many tokens.
func (l *limit) set(least, most *big.Rat, now int64) *stored {
	gone := func(tokens *big.Rat, slow bool) *bound {
		in := l.interval(slow)
		return &bound{in, new(big.Rat).Add(rat(now), new(big.Rat).Mul(tokens, in))}
	}
	return &stored{l.ns, gone(least, false), gone(most, true)}
}

func whole(tokens *big.Rat) int64 {
	n, _ := new(big.Int).DivMod(tokens.Num(), tokens.Denom(), new(big.Int))
	return n.Int64()
}

// left returns how many whole tokens a bucket has, at least and at most.
func (l *limit) left(b *stored, now int64) (least, most int64) {
	remaining := func(slow bool) int64 {
		return max(whole(new(big.Rat).Sub(rat(l.burst), l.owed(b, slow, now))), 0)
	}
	return remaining(true), remaining(false)
}

// world is a limiter and what the model has of it.
type world struct {
	t       *rapid.T
	now     int64
	limits  []limit
	buckets map[[2]string]*stored // by key and limit
	held    map[[2]string]int64   // until when buckets are
	*tokenbucket.Limiter
}

// plan draws a plan of limits with names of a few, so that plans have some in common.
func (w *world) plan() tokenbucket.Limits {
	t, plan := w.t, tokenbucket.Limits(nil)
	w.limits = nil
	for _, name := range []string{"a", "b", "c"} {
		if len(plan) > 0 && rapid.Bool().Draw(t, "without "+name) {
			continue
		}
		per := rapid.SampledFrom([]time.Duration{
			50 * time.Millisecond, time.Second, 7 * time.Second, time.Minute, time.Hour, day, 30 * day, 365 * day,
		}).Draw(t, "period")
		count := rapid.SampledFrom([]int64{1, 3, 20, 300, 1000, 100_000}).Draw(t, "count")
		burst := min(rapid.SampledFrom([]int64{1, 2, 5, 20, count}).Draw(t, "burst"), max(1, count*int64(3650*day/per)))
		l := limit{name: name, burst: burst, exact: big.NewRat(int64(per), count)}
		l.ns = (int64(per) + count - 1) / count
		l.overdraft = rapid.SampledFrom([]int64{0, 1, l.burst}).Draw(t, "overdraft")
		w.limits = append(w.limits, l)
		plan = append(plan, tokenbucket.Per(count, per).Burst(l.burst).Overdraft(l.overdraft).Named(name))
	}
	return plan
}

func (w *world) at(key string, l *limit) *stored { return w.buckets[[2]string{key, l.name}] }

// costs are the tokens of each limit that a decision about a key takes.
type costs map[string]int64

// could returns whether a decision may be allowed, and whether it must be.
func (w *world) could(key string, c costs) (may, must bool) {
	may, must = true, true
	held := false
	for i := range w.limits {
		l := &w.limits[i]
		n := c[l.name]
		if n == 0 {
			continue
		}
		held = held || w.held[[2]string{key, l.name}] > w.now
		least, most := l.left(w.at(key, l), w.now)
		may, must = may && n <= most, must && n <= least
	}
	return may && !held, must && !held
}

// charge adds tokens to what the buckets of a key owe, between nothing and what they may.
func (w *world) charge(key string, c costs) {
	for i := range w.limits {
		l := &w.limits[i]
		n := c[l.name]
		if n == 0 {
			continue
		}
		b := w.at(key, l)
		sum := func(slow bool) *big.Rat {
			owed := new(big.Rat).Add(l.owed(b, slow, w.now), rat(n))
			if owed.Sign() < 0 {
				return rat(0)
			}
			if largest := rat(l.burst + l.overdraft); owed.Cmp(largest) > 0 {
				return largest
			}
			return owed
		}
		w.buckets[[2]string{key, l.name}] = l.set(sum(false), sum(true), w.now)
	}
}

// check compares a decision about a key with the model, and charges that.
func (w *world) check(key string, d tokenbucket.Decision, c costs, looked bool) {
	w.t.Helper()
	may, must := w.could(key, c)
	if d.Allowed && !may || !d.Allowed && must || d.Allowed != (d.RetryAfter == 0) {
		w.t.Fatalf("%v of %q: %+v; may be allowed: %v; must be: %v", c, key, d, may, must)
	}
	if d.Allowed && !looked {
		w.charge(key, c)
	}
	w.checkLimits(key, d.Limits())
}

func (w *world) checkLimits(key string, states []tokenbucket.LimitState) {
	w.t.Helper()
	if len(states) != len(w.limits) {
		w.t.Fatalf("%d limits, want %d", len(states), len(w.limits))
	}
	for i, s := range states {
		l := &w.limits[i]
		if least, most := l.left(w.at(key, l), w.now); s.Name != l.name || s.Remaining < least || s.Remaining > most {
			w.t.Fatalf("limit %q of %q has %+v, want %d to %d tokens", l.name, key, s, least, most)
		}
	}
}

func (w *world) smallestBurst() int64 {
	smallest := w.limits[0].burst
	for _, l := range w.limits {
		smallest = min(smallest, l.burst)
	}
	return smallest
}

func (w *world) every(n int64) costs {
	c := costs{}
	for _, l := range w.limits {
		c[l.name] = n
	}
	return c
}

// reserved is a reservation that is not settled.
type reserved struct {
	*tokenbucket.Reservation
	key      string
	estimate costs
}

// CheckLimiter makes random steps of all kinds with a limiter, at times that pass lets pass, in
// multiples of step, and compares each decision with a model in exact fractions.
func CheckLimiter(t *rapid.T, buckets store.Buckets, pass func(time.Duration), step time.Duration) {
	w := &world{t: t, buckets: map[[2]string]*stored{}, held: map[[2]string]int64{}}
	plan := w.plan()
	var err error
	if w.Limiter, err = tokenbucket.New(buckets, "model", plan); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	keys := rapid.SampledFrom([]string{"one", "two"})
	var open []reserved
	for range rapid.IntRange(1, 25).Draw(t, "steps") {
		longest := int64(rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, time.Hour, 40 * day}).Draw(t, "longest pause"))
		pause := time.Duration(rapid.Int64Range(0, longest).Draw(t, "pause")).Truncate(step)
		pass(pause)
		w.now += int64(pause)
		key := keys.Draw(t, "key")
		n := rapid.Int64Range(0, min(w.smallestBurst(), 50)).Draw(t, "tokens")
		switch what := rapid.SampledFrom([]string{
			"allow", "allow", "peek", "reset", "at most", "all", "reserve", "reserve", "settle", "settle", "cancel", "hold", "plan",
		}).Draw(t, "step"); what {
		case "allow":
			d, err := w.AllowN(ctx, key, n)
			must(err)
			w.check(key, d, w.every(n), false)
		case "peek":
			d, err := w.Peek(ctx, key)
			must(err)
			w.check(key, d, w.every(1), true)
		case "reset":
			must(w.Reset(ctx, key))
			for _, l := range w.limits {
				delete(w.buckets, [2]string{key, l.name})
				delete(w.held, [2]string{key, l.name})
			}
		case "at most":
			w.atMost(key, n+1)
		case "all":
			other := keys.Draw(t, "other key")
			w.all(key, other, n, rapid.Int64Range(0, w.smallestBurst()).Draw(t, "tokens of the other"))
		case "reserve":
			if r, ok := w.reserve(key, rapid.Int64Range(0, 30)); ok {
				open = append(open, r)
			}
		case "settle", "cancel":
			if len(open) == 0 {
				continue
			}
			i := rapid.IntRange(0, len(open)-1).Draw(t, "reservation")
			w.settle(open[i], what == "cancel", rapid.Int64Range(0, 60))
			open = append(open[:i], open[i+1:]...)
		case "hold":
			d := time.Duration(rapid.SampledFrom([]int64{1e6, 1e9, int64(time.Hour), int64(30 * day)}).Draw(t, "hold"))
			must(w.Hold(ctx, key, d))
			for _, l := range w.limits {
				held := [2]string{key, l.name}
				w.held[held] = max(w.held[held], w.now+int64(d))
			}
		case "plan":
			must(w.SetPlan(w.plan()))
		}
	}
}

func (w *world) atMost(key string, n int64) {
	d, err := w.AllowAtMost(w.t.Context(), key, n)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, held := w.could(key, w.every(1)); d.Taken == 0 || !held && !d.Allowed {
		w.check(key, d, w.every(1), true)
		return
	}
	least, most := n, n
	for i := range w.limits {
		few, many := w.limits[i].left(w.at(key, &w.limits[i]), w.now)
		least, most = min(least, few), min(most, many)
	}
	if !d.Allowed || d.Taken < least || d.Taken > most {
		w.t.Fatalf("%d at most: %+v, want %d to %d", n, d, least, most)
	}
	w.charge(key, w.every(d.Taken))
	w.checkLimits(key, d.Limits())
}

func (w *world) all(key, other string, n, m int64) {
	d, err := tokenbucket.All(w.t.Context(), w.Ask(key, n), w.Ask(other, m))
	if tooMany := key == other && n+m > w.smallestBurst(); tooMany && errors.Is(err, tokenbucket.ErrCostExceedsBurst) {
		return
	} else if err != nil || tooMany {
		w.t.Fatalf("%d of %q and %d of %q: %v", n, key, m, other, err)
	}
	may, must := w.could(key, w.every(n))
	may2, must2 := w.could(other, w.every(m))
	if may, must = may && may2, must && must2; key == other {
		may, must = w.could(key, w.every(n+m))
	}
	if d.Allowed && !may || !d.Allowed && must {
		w.t.Fatalf("%d of %q and %d of %q: %+v; may be allowed: %v; must be: %v", n, key, m, other, d, may, must)
	}
	if d.Allowed {
		w.charge(key, w.every(n))
		w.charge(other, w.every(m))
	}
	if states := d.Limits(); key != other {
		w.checkLimits(key, states[:len(w.limits)])
		w.checkLimits(other, states[len(w.limits):])
	}
}

func (w *world) reserve(key string, tokens *rapid.Generator[int64]) (reserved, bool) {
	cost, estimate := tokenbucket.Cost{}, costs{}
	for _, l := range w.limits {
		if rapid.Bool().Draw(w.t, "costs "+l.name) {
			cost[l.name] = tokens.Draw(w.t, "estimate of "+l.name)
			estimate[l.name] = min(cost[l.name], l.burst)
		}
	}
	r, err := w.Reserve(w.t.Context(), key, cost)
	if err != nil {
		w.t.Fatal(err)
	}
	w.check(key, r.Decision, estimate, false)
	return reserved{r, key, estimate}, r.Allowed
}

func (w *world) settle(r reserved, cancel bool, tokens *rapid.Generator[int64]) {
	used := costs{}
	for name := range r.estimate {
		switch {
		case rapid.Bool().Draw(w.t, "used "+name):
			used[name] = tokens.Draw(w.t, "used of "+name)
			if err := r.Use(name, used[name]); err != nil {
				w.t.Fatal(err)
			}
		case cancel:
			used[name] = 0
		}
	}
	end := r.Settle
	if cancel {
		end = r.Cancel
	}
	corrections := costs{}
	may, must := false, false // be more than the overdraft
	for i := range w.limits {
		l := &w.limits[i]
		n, known := used[l.name]
		if !known {
			continue
		}
		corrections[l.name] = n - r.estimate[l.name]
		room := func(slow bool) bool {
			owed := new(big.Rat).Add(l.owed(w.at(r.key, l), slow, w.now), rat(corrections[l.name]))
			return corrections[l.name] <= 0 || owed.Cmp(rat(l.burst+l.overdraft)) <= 0
		}
		may, must = may || !room(true), must || !room(false)
	}
	err := end(w.t.Context())
	if over := errors.Is(err, tokenbucket.ErrOverdraft); err != nil && !over || over && !may || !over && must {
		w.t.Fatalf("settled %v of %v: %v; may exceed the overdraft: %v; must: %v", used, r.estimate, err, may, must)
	}
	w.charge(r.key, corrections)
	if err := end(w.t.Context()); err != nil {
		w.t.Fatalf("settled twice: %v", err)
	}
}
