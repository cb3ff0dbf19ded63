package guard

// SetMaxPending sets the limit of the bytes of pending completions.
func (g *Guard) SetMaxPending(bytes int) { g.pending.queue.MaxBytes = bytes }
