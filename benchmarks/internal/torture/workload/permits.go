package workload

// permits acquires one or more permits of a key.
func (a *actor) permits() {
	ctx, cancel := a.patience()
	defer cancel()
	tier := a.rand.IntN(len(a.semaphores))
	s, weight, key := a.semaphores[tier], 1+a.rand.IntN(heaviest), a.key(0)
	try := a.chance(20)
	add := a.called(key, int64(weight), tiers[tier].reserve, !try)
	request := s.AcquireN
	if try {
		request = s.TryAcquireN
	}
	permit, err := request(ctx, key, weight)
	if err != nil {
		a.failed(add, err)
		return
	}
	h := held{add, permit.Fence().Number}
	if granted(permit, h) {
		a.work(permit, h)
		releasing(permit, false, h)
	}
	if a.chance(50) {
		permit.ReleaseAsync()
		return
	}
	_ = permit.Release(ctx)
}
