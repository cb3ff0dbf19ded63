package lease

// Len returns the number of leases.
func (k *Keeper[H]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept
}
