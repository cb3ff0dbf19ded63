package guard

// SetMaxPending sets how many bytes of pending completions a guard keeps.
func (g *Guard) SetMaxPending(bytes int) { g.pending.queue.MaxBytes = bytes }
