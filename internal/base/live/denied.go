package live

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// MaxDeniedKeys is the largest number of keys that a counter has.
const MaxDeniedKeys = 100

// sureDenials is the number of denials in each slot whose keys are all counted. Of later ones it is
// one in sampled, which counts as all of these.
const sureDenials = 1000

// DeniedKey is a key, and how often it was denied.
type DeniedKey struct {
	Key     string
	Denials uint64
	Excess  uint64 // by how much Denials may be too high, since the table was full
}

// Deny counts a denial of a key. Count counts it among the results.
func (c *Counter) Deny(key string) {
	s := c.running()
	if s == nil {
		return
	}
	weight := uint64(1)
	if s.denied.counted.Load() >= sureDenials {
		if rand.Uint32()%sampled != 0 { //nolint:gosec // no secret
			return
		}
		weight = sampled
	}
	s.denied.add(key, weight)
}

// DeniedKeys returns the keys that were denied most in the last 10 to 20 minutes, at most
// [MaxDeniedKeys], the one with the most denials first. It returns nil if the counter has not been
// started.
func (c *Counter) DeniedKeys() []DeniedKey {
	c.Step()
	if s := c.running(); s != nil {
		return s.denied.most()
	}
	return nil
}

// deniedKeys has the keys that were denied in a window of [Slots] slots, and in the one before it.
type deniedKeys struct {
	counted atomic.Uint32 // denials in this slot, without the ones that the sample leaves out

	mu           sync.Mutex
	number       int // of the current window
	now, earlier topKeys
}

func (d *deniedKeys) add(key string, n uint64) {
	d.counted.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now.add(key, n)
}

// step begins the slot of this number.
func (d *deniedKeys) step(slot int) {
	d.counted.Store(0)
	d.mu.Lock()
	defer d.mu.Unlock()
	window := slot / Slots
	switch window {
	case d.number:
		return
	case d.number + 1:
		d.earlier = d.now
	default:
		d.earlier = topKeys{}
	}
	d.number, d.now = window, topKeys{}
}

// most returns the keys of both windows.
func (d *deniedKeys) most() []DeniedKey {
	d.mu.Lock()
	keys, earlier := slices.Clone(d.now.keys), slices.Clone(d.earlier.keys)
	d.mu.Unlock()
	at := make(map[string]int, len(keys))
	for i := range keys {
		at[keys[i].Key] = i
	}
	for _, k := range earlier {
		if i, both := at[k.Key]; both {
			keys[i].Denials += k.Denials
			keys[i].Excess += k.Excess
		} else {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Denials, a.Denials), cmp.Compare(a.Key, b.Key))
	})
	return keys[:min(len(keys), MaxDeniedKeys)]
}

// topKeys counts keys by the space-saving algorithm (Metwally, Agrawal and El Abbadi, 2005): a key
// that is new in a full table replaces the one with the fewest denials, and takes these over. So
// every key with more than a hundredth of all denials is there.
type topKeys struct {
	keys []DeniedKey
	at   map[string]int // the index of a key
}

func (t *topKeys) add(key string, n uint64) {
	if i, ok := t.at[key]; ok {
		t.keys[i].Denials += n
		return
	}
	if t.at == nil {
		t.at = make(map[string]int)
	}
	key = strings.Clone(key) // it may outlive the request that the key is a part of
	i := len(t.keys)
	if i < MaxDeniedKeys {
		t.keys = append(t.keys, DeniedKey{})
	} else {
		i = t.least()
		delete(t.at, t.keys[i].Key)
	}
	before := t.keys[i].Denials
	t.keys[i] = DeniedKey{key, before + n, before}
	t.at[key] = i
}

// least returns the index of the key with the fewest denials.
func (t *topKeys) least() (least int) {
	for i := range t.keys {
		if t.keys[i].Denials < t.keys[least].Denials {
			least = i
		}
	}
	return least
}
