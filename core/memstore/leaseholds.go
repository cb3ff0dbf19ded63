package memstore

import "github.com/lockkeeper/lockkeeper/core/internal/heap"

// holds are the holds of a key by their end, and the sum of their weights.
type holds struct {
	all    heap.Heap[*lease]
	weight int64
}

// Before implements heap.Item.
func (r *lease) Before(other *lease) bool { return r.until < other.until }

// Index implements heap.Item.
func (r *lease) Index() *int { return &r.index }

func (h *holds) add(r *lease) {
	h.all.Push(r)
	h.weight += int64(r.req.Weight)
}

func (h *holds) remove(r *lease) {
	h.all.Remove(r)
	h.weight -= int64(r.req.Weight)
}

// expire removes the holds that have ended, and calls gone for each: a few one by one, many by a
// sweep, which costs less for each.
func (h *holds) expire(now int64, gone func(*lease)) {
	for range 64 + len(h.all)/64 {
		if now < h.nextEnd() {
			return
		}
		r := h.all[0]
		h.remove(r)
		gone(r)
	}
	all := h.all
	h.all = all[:0]
	for _, r := range all {
		if now < r.until {
			h.all.Push(r)
		} else {
			h.weight -= int64(r.req.Weight)
			gone(r)
		}
	}
	clear(all[len(h.all):])
}

// nextEnd returns when the first hold ends.
func (h *holds) nextEnd() int64 {
	if len(h.all) == 0 {
		return never
	}
	return h.all[0].until
}

// freed returns when holds of a weight have ended: all of them, if the weight is larger than
// theirs. There are holds.
func (h *holds) freed(weight int64) (end int64) {
	if weight >= h.weight {
		for _, r := range h.all {
			end = max(end, r.until)
		}
		return end
	}
	if weight <= int64(h.all[0].req.Weight) {
		return h.all[0].until
	}
	// The next one to end is a child of one that has been passed.
	next := heap.Heap[*passing]{{hold: h.all[0]}}
	for {
		r := next.Pop().hold
		weight -= int64(r.req.Weight)
		if weight <= 0 {
			return r.until
		}
		for child := 2*r.index + 1; child <= 2*r.index+2 && child < len(h.all); child++ {
			next.Push(&passing{hold: h.all[child]})
		}
	}
}

// passing is a hold in a heap beside that of the holds.
type passing struct {
	hold  *lease
	index int
}

// Before implements heap.Item.
func (p *passing) Before(other *passing) bool { return p.hold.until < other.hold.until }

// Index implements heap.Item.
func (p *passing) Index() *int { return &p.index }
