package bucketmodel

import (
	"errors"
	"math/big"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// debts are those of a store as its contract has them.
type debts struct {
	t       *rapid.T
	buckets store.Buckets
	step    time.Duration
	began   time.Time // by the store's clock
	now     time.Duration
	period  time.Duration // its mean length
	states  map[bucketName]state
	limits  map[bucketName]store.Charge  // of the present step, without costs
	ends    map[bucketName]time.Duration // of the present periods of calendars
}

type bucketName struct{ key, bucket string }

// state is a bucket's.
type state struct {
	full     time.Duration
	interval time.Duration // of the last charge; zero for a bucket that is full
	held     time.Duration // when the hold ends
	span     time.Duration // for how long it was held; zero if it never was
	// Of a calendar:
	used time.Duration
	end  time.Duration
}

var (
	lengths = rapid.OneOf(
		rapid.Int64Range(0, 3000), rapid.Int64Range(1<<53-3000, 1<<53+3000), rapid.Int64Range(0, int64(7320*day)),
	)
	// periods are in µs.
	periods = rapid.OneOf(
		rapid.Int64Range(2, 3000), rapid.Int64Range(3_600_000_000, 31*86_400_000_000), rapid.Map(rapid.Int64Range(1, 366), func(n int64) int64 { return n * 86_400_000_000 }),
	)
	intervals = rapid.OneOf(
		rapid.SampledFrom([]int64{1, 3, 1000, 333_333_334, int64(time.Minute), 1 << 53, int64(365 * day)}),
		rapid.Int64Range(1, 3000), rapid.Int64Range(1, int64(366*day)),
	)
)

// CheckDebts compares the debts of a store with those of the contract: of takes, settlements, holds
// and resets of the buckets of some keys, one or several at once, as if their plans changed each
// time. All durations of the store are exact; those of pauses and holds are multiples of step. The
// store's clock is at now, in whole microseconds. If back is set, it steps back at times.
func CheckDebts(t *rapid.T, buckets store.Buckets, now time.Time, pass func(time.Duration), step time.Duration, back bool) {
	d := &debts{t: t, buckets: buckets, began: now, step: step, states: map[bucketName]state{}}
	d.period = time.Duration(periods.Draw(t, "period")) * time.Microsecond
	for range rapid.IntRange(1, 20).Draw(t, "steps") {
		pause := d.length("pause") / 8
		if back && rapid.IntRange(0, 4).Draw(t, "back") == 0 {
			pause = -pause
		}
		pass(pause.Truncate(step))
		d.now += pause.Truncate(step)
		d.limits, d.ends = map[bucketName]store.Charge{}, map[bucketName]time.Duration{}
		switch rapid.IntRange(0, 11).Draw(t, "call") {
		default:
			d.take(d.request(false))
		case 5:
			r := d.request(false)
			r.AtMost = rapid.OneOf(rapid.Int64Range(1, 5), rapid.Int64Range(1, 1<<62)).Draw(t, "at most")
			d.take(r)
		case 6:
			var more []store.TokenRequest
			for range rapid.IntRange(1, 3).Draw(t, "more") {
				more = append(more, d.request(false))
			}
			d.take(d.request(false), more...)
		case 7:
			d.settle(d.request(true))
		case 8, 10, 11:
			d.hold(d.request(false))
		case 9:
			d.reset(d.request(false))
		}
	}
}

func (d *debts) length(what string) time.Duration { return time.Duration(lengths.Draw(d.t, what)) }

// request returns one about some buckets of a key. One key has a home of its own, and two have the
// same.
func (d *debts) request(signed bool) store.TokenRequest {
	r := store.TokenRequest{Limiter: "debts", Key: rapid.SampledFrom([]string{"k", "k", "l", "m"}).Draw(d.t, "key")}
	if r.Key != "k" {
		r.Home = &store.BucketHome{Limiter: "homes", Key: "l"}
	}
	names := rapid.Permutation([]string{"", "b", "c", "b@", "c@"}).Draw(d.t, "buckets")
	for _, bucket := range names[:rapid.IntRange(1, len(names)).Draw(d.t, "charges")] {
		c := d.limit(bucketName{r.Key, bucket})
		costs := []time.Duration{0, 1, 999, 1000, c.Capacity / 7, c.Capacity / 2, c.Capacity, c.Capacity + 1}
		if signed {
			costs = append(costs, c.Capacity+c.Overdraft, c.Capacity+c.Overdraft+1)
		}
		c.Cost = rapid.SampledFrom(costs).Draw(d.t, "cost")
		if signed && rapid.Bool().Draw(d.t, "negative") {
			c.Cost = -c.Cost
		}
		r.Charges = append(r.Charges, c)
	}
	return r
}

// limit returns a charge without a cost, the same for all charges of the step to a bucket. Most
// buckets keep their interval.
func (d *debts) limit(name bucketName) store.Charge {
	if c, ok := d.limits[name]; ok {
		return c
	}
	c := store.Charge{Bucket: name.bucket, Capacity: d.length("capacity"), Overdraft: d.length("overdraft")}
	if strings.HasSuffix(name.bucket, "@") {
		c.Interval = 1
		c.Period, d.ends[name] = d.calendar()
		d.limits[name] = c
		return c
	}
	c.Interval = d.states[name].interval
	if c.Interval == 0 || rapid.IntRange(0, 2).Draw(d.t, "change") == 0 {
		c.Interval = time.Duration(intervals.Draw(d.t, "interval"))
	}
	c.Fresh = rapid.IntRange(0, 4).Draw(d.t, "fresh") == 0
	d.limits[name] = c
	return c
}

// calendar returns the bounds of periods of a client whose clock may be off by one of them, and the
// end of the present one. Calendars differ in where their periods begin, and each second period of
// some is longer than the others.
func (d *debts) calendar() (*store.Period, time.Duration) {
	some := func(n time.Duration, what string) time.Duration {
		return time.Duration(rapid.Int64Range(0, max(int64(n/time.Microsecond)-1, 0)).Draw(d.t, what)) * time.Microsecond
	}
	var first, longer time.Duration
	if rapid.IntRange(0, 3).Draw(d.t, "calendar") == 0 {
		first, longer = some(d.period, "first"), some(d.period, "longer")
	}
	bound := func(i int64) time.Duration { return first + time.Duration(i)*d.period + time.Duration(i&1)*longer }
	i := int64(d.now/d.period) - 3
	for bound(i+1) <= d.now {
		i++
	}
	j := i + rapid.Int64Range(-1, 1).Draw(d.t, "off by")
	at := func(i int64) time.Time { return d.began.Add(bound(i)) }
	return &store.Period{Begin: at(j), End: at(j + 1), Next: at(j + 2)}, bound(i + 1)
}

// lasts returns for how long the period of a bucket of a calendar does, and whether its debt is of
// that.
func (d *debts) lasts(key string, c *store.Charge) (left time.Duration, same bool) {
	name := bucketName{key, c.Bucket}
	s := d.states[name]
	if left := s.end - d.now; s.used > 0 && left > 0 && left <= 2*d.period {
		return left, true
	}
	return d.ends[name] - d.now, false
}

// owes returns the debt of a charge's bucket.
func (d *debts) owes(key string, c *store.Charge) time.Duration {
	s := d.states[bucketName{key, c.Bucket}]
	if c.Period != nil {
		if _, same := d.lasts(key, c); same {
			return min(s.used, c.Capacity+c.Overdraft)
		}
		return 0
	}
	left := max(s.full-d.now, 0)
	switch s.interval {
	case 0:
		return 0
	case c.Interval:
		return left
	}
	converted := c.Convert(left, s.interval)
	d.checkConverted(c, converted, left, s.interval)
	return converted
}

// checkConverted checks a conversion against exact fractions. It is of the nearest nanosecond
// above, but for what numbers of 53 bits cannot tell.
func (d *debts) checkConverted(c *store.Charge, got, debt, interval time.Duration) {
	want := rat(int64(debt))
	want.Mul(want, rat(int64(c.Interval))).Quo(want, rat(int64(interval)))
	if c.Fresh {
		want = rat(0)
	}
	if most := rat(int64(c.Capacity)); want.Cmp(most) > 0 {
		want = most
	}
	off := new(big.Rat).Sub(rat(int64(got)), want)
	near := new(big.Rat).Add(rat(1), new(big.Rat).Quo(want, rat(1<<50)))
	if off.Abs(off).Cmp(near) > 0 {
		d.t.Fatalf("a debt of %d at %d is %d at %d, want %v", debt, interval, got, c.Interval, want.FloatString(3))
	}
}

// held returns for how long one of the buckets is held.
func (d *debts) held(all []store.TokenRequest, charged bool) (held time.Duration) {
	for _, r := range all {
		for _, c := range r.Charges {
			if !charged || c.Cost != 0 {
				held = max(held, d.heldFor(bucketName{r.Key, c.Bucket}))
			}
		}
	}
	return held
}

// heldFor returns for how long a bucket is held. A hold that the clock makes longer by a step back
// begins again when that is seen.
func (d *debts) heldFor(name bucketName) time.Duration {
	s := d.states[name]
	switch left := s.held - d.now; {
	case s.span == 0 || left <= 0:
		return 0
	case left > s.span:
		d.holdFor(name, s.span)
		return s.span
	default:
		return left
	}
}

// holdFor begins a hold, of a bucket whose debt is forgotten if it is gone.
func (d *debts) holdFor(name bucketName, span time.Duration) {
	s := d.states[name]
	s.held, s.span = d.now+span, span
	if s.full <= d.now {
		s.interval = 0
	}
	if s.end <= d.now {
		s.used = 0
	}
	d.states[name] = s
}

// ask makes a decision, in each of the ways that the store has.
func (d *debts) ask(r store.TokenRequest, more []store.TokenRequest) (store.TakeReply, error) {
	quick, ok := d.buckets.(store.QuickBuckets)
	ok = ok && len(more) == 0 && len(r.Charges) == 1 && r.Charges[0].Period == nil && r.AtMost == 0
	if ok && rapid.Bool().Draw(d.t, "quickly") {
		if debt, allowed, decided := quick.TakeQuickly(d.t.Context(), r.Limiter, r.Key, &r.Charges[0]); decided {
			return store.TakeReply{Allowed: allowed, Debts: store.OneDebt(debt)}, nil
		}
	}
	return d.buckets.TakeTokens(d.t.Context(), r, more...)
}

func (d *debts) take(r store.TokenRequest, more ...store.TokenRequest) {
	reply, err := d.ask(r, more)
	all := append([]store.TokenRequest{r}, more...)
	near := !slices.ContainsFunc(more, func(q store.TokenRequest) bool { return q.InHome() != r.InHome() })
	if errors.Is(err, store.ErrManySlots) && !near {
		return
	}
	if err != nil {
		d.t.Fatal(err)
	}
	want := store.TakeReply{Allowed: d.held(all, true) == 0, Taken: r.AtMost, Held: d.held(all, false)}
	costs := map[bucketName]time.Duration{}
	for _, r := range all {
		for _, c := range r.Charges {
			name := bucketName{r.Key, c.Bucket}
			room := c.Capacity - d.owes(r.Key, &c) - costs[name]
			want.Allowed = want.Allowed && (c.Cost == 0 || c.Cost <= room)
			if want.Allowed && c.Cost > 0 {
				costs[name] += c.Cost
				want.Taken = min(want.Taken, int64(room/c.Cost))
			}
		}
	}
	if !want.Allowed {
		clear(costs)
		want.Taken = 0
	}
	for name, cost := range costs {
		c := d.limits[name]
		d.charge(name, &c, d.owes(name.key, &c)+cost*time.Duration(max(want.Taken, 1)))
	}
	d.check(reply, want, all)
}

func (d *debts) settle(r store.TokenRequest) {
	var quickly, allowed bool
	if quick, ok := d.buckets.(store.QuickBuckets); ok && len(r.Charges) == 1 && r.Charges[0].Period == nil && rapid.Bool().Draw(d.t, "quickly") {
		allowed, quickly = quick.SettleQuickly(r.Limiter, r.Key, &r.Charges[0])
	}
	var reply store.TakeReply
	if !quickly {
		var err error
		if reply, err = d.buckets.SettleTokens(d.t.Context(), r); err != nil {
			d.t.Fatal(err)
		}
	}
	all := []store.TokenRequest{r}
	want := store.TakeReply{Allowed: true, Held: d.held(all, false)}
	for _, c := range r.Charges {
		if most := c.Capacity + c.Overdraft; c.Cost != 0 {
			debt := min(d.owes(r.Key, &c), most) + c.Cost
			want.Allowed = want.Allowed && debt <= most
			d.charge(bucketName{r.Key, c.Bucket}, &c, max(min(debt, most), 0))
		}
	}
	if quickly { // later steps find the debt
		if allowed != want.Allowed {
			d.t.Fatalf("settled %+v: allowed %v, want %v", r.Charges, allowed, want.Allowed)
		}
		return
	}
	d.check(reply, want, all)
}

// charge leaves a bucket with a debt, and forgets a hold that has ended.
func (d *debts) charge(name bucketName, c *store.Charge, debt time.Duration) {
	s := d.states[name]
	if d.heldFor(name) == 0 {
		s.span = 0
	}
	if s.full, s.interval = d.now+debt, c.Interval; debt == 0 {
		s.interval = 0
	}
	if c.Period != nil {
		left, _ := d.lasts(name.key, c)
		s.used, s.end = debt, d.now+left
	}
	d.states[name] = s
}

func (d *debts) check(got, want store.TakeReply, all []store.TokenRequest) {
	i := 0
	for _, r := range all {
		for _, c := range r.Charges {
			if debt := d.owes(r.Key, &c); got.Debts.At(i) != debt {
				d.t.Fatalf("charge %d, of %+v: a debt of %d, want %d; %+v", i, c, got.Debts.At(i), debt, want)
			}
			left := time.Duration(0)
			if c.Period != nil {
				left, _ = d.lasts(r.Key, &c)
			}
			if got.Debts.End(i) != left {
				d.t.Fatalf("charge %d, of %+v: the period lasts for %v, want %v", i, c, got.Debts.End(i), left)
			}
			i++
		}
	}
	got.Debts, got.Cached = store.Debts{}, false
	if got != want {
		d.t.Fatalf("%+v, want %+v", got, want)
	}
}

func (d *debts) hold(r store.TokenRequest) {
	length := (d.length("hold") / 8).Truncate(d.step)
	if err := d.buckets.HoldTokens(d.t.Context(), r, length); err != nil {
		d.t.Fatal(err)
	}
	for _, c := range r.Charges {
		name := bucketName{r.Key, c.Bucket}
		if length > 0 && d.heldFor(name) < length { // else a store need not look at it
			d.holdFor(name, length)
		}
	}
}

func (d *debts) reset(r store.TokenRequest) {
	if err := d.buckets.ResetTokens(d.t.Context(), r); err != nil {
		d.t.Fatal(err)
	}
	for _, c := range r.Charges {
		delete(d.states, bucketName{r.Key, c.Bucket})
	}
}
