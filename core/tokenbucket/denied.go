package tokenbucket

// DeniedKey is a key that was denied: see [Limiter.Denied].
type DeniedKey struct {
	Key     string
	Denials uint64
	Excess  uint64 // by how much Denials may be too high, if more than 100 keys were denied
}

// Denied returns the keys that this process denied most in the last 10 to 20 minutes: at most 100,
// the one with the most denials first. It returns nil, and nothing is counted, unless the process
// shows itself to the fleet ([github.com/lockkeeper/lockkeeper/core/presence.Start]). Limiters of
// one name on a store are counted together.
//
// In every 5 s the first 1,000 denials are counted exactly, and a sample of the later ones: one in
// 64, which counts as 64. If more than 100 keys were denied, one with less than a hundredth of the
// denials may be missing, and a key that came late has an Excess.
//
// All denials count, also those of the denial cache, of blocks ([WithLease]) and of stand-ins, with
// these exceptions:
//   - Peek, candidates and limits in shadow deny nothing.
//   - Of a wait only the first decision counts.
//   - Of [All] the keys count whose limits deny. If none does, a key is held, and all of them count.
func (l *Limiter) Denied() []DeniedKey {
	var denied []DeniedKey
	for _, k := range l.namesake.Counter().DeniedKeys() {
		denied = append(denied, DeniedKey(k))
	}
	return denied
}

// countDenied counts a denial of a key.
func (l *Limiter) countDenied(key string, d *Decision) {
	if !d.again {
		l.namesake.Counter().Deny(key)
	}
}

// countAllDenied counts the keys of asks that were denied together.
func countAllDenied(asks []Ask, plans []*fixedPlan, d *Decision) {
	first, counted := 0, false
	for i, a := range asks {
		if d.deniedBy(first, len(plans[i].meters)) {
			a.limiter.countDenied(a.key, d)
			counted = true
		}
		first += len(plans[i].meters)
	}
	if counted {
		return
	}
	for i, a := range asks {
		if len(plans[i].meters) > 0 {
			a.limiter.countDenied(a.key, d)
		}
	}
}

// deniedBy reports whether one of n limits, from the first one on, denies its cost.
func (d *Decision) deniedBy(first, n int) bool {
	for i := first; i < first+n; i++ {
		if d.plan.meters[i].wait(d.debts.At(i), (*d.asked)[i].Cost, d.debts.End(i)) > 0 {
			return true
		}
	}
	return false
}
