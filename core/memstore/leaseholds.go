package memstore

import "container/heap"

// holds are the holds of a key: a heap by their end, and the sum of their weights.
type holds struct {
	all    []*lease
	weight int64
}

func (h *holds) Len() int           { return len(h.all) }
func (h *holds) Less(i, j int) bool { return h.all[i].until < h.all[j].until }

func (h *holds) Swap(i, j int) {
	h.all[i], h.all[j] = h.all[j], h.all[i]
	h.all[i].index, h.all[j].index = i, j
}

// Push implements heap.Interface.
func (h *holds) Push(x any) {
	r := x.(*lease)
	r.index = len(h.all)
	h.all = append(h.all, r)
	h.weight += int64(r.req.Weight)
}

// Pop implements heap.Interface.
func (h *holds) Pop() any {
	last := len(h.all) - 1
	r := h.all[last]
	h.all[last] = nil
	h.all = h.all[:last]
	h.weight -= int64(r.req.Weight)
	return r
}

// expire removes the holds that have ended, and calls gone for each: a few one by one, many by a
// sweep, which costs less for each.
func (h *holds) expire(now int64, gone func(*lease)) {
	for range 64 + len(h.all)/64 {
		if now < h.nextEnd() {
			return
		}
		gone(heap.Pop(h).(*lease))
	}
	live := h.all[:0]
	for _, r := range h.all {
		if now < r.until {
			r.index = len(live)
			live = append(live, r)
		} else {
			h.weight -= int64(r.req.Weight)
			gone(r)
		}
	}
	clear(h.all[len(live):])
	h.all = live
	heap.Init(h)
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
	next := ends{of: h.all, index: []int{0}}
	for {
		i := heap.Pop(&next).(int)
		weight -= int64(h.all[i].req.Weight)
		if weight <= 0 {
			return h.all[i].until
		}
		for child := 2*i + 1; child <= 2*i+2 && child < len(h.all); child++ {
			heap.Push(&next, child)
		}
	}
}

// ends is a heap of some holds by their end. It does not change theirs.
type ends struct {
	of    []*lease
	index []int
}

func (e *ends) Len() int           { return len(e.index) }
func (e *ends) Less(i, j int) bool { return e.of[e.index[i]].until < e.of[e.index[j]].until }
func (e *ends) Swap(i, j int)      { e.index[i], e.index[j] = e.index[j], e.index[i] }
func (e *ends) Push(x any)         { e.index = append(e.index, x.(int)) }

// Pop implements heap.Interface.
func (e *ends) Pop() any {
	last := len(e.index) - 1
	i := e.index[last]
	e.index = e.index[:last]
	return i
}
