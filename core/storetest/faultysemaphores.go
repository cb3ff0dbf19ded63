package storetest

import (
	"context"
	"iter"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// AcquirePermits implements semaphore.Store.
func (f *Faulty) AcquirePermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.AcquireReply, error) {
	return disturb(ctx, f, AcquirePermits, func() (semaphore.AcquireReply, error) { return f.Store.AcquirePermits(ctx, req) })
}

// AwaitPermits implements semaphore.Store.
func (f *Faulty) AwaitPermits(ctx context.Context, req semaphore.AcquireRequest) (semaphore.Grant, error) {
	return disturb(ctx, f, AwaitPermits, func() (semaphore.Grant, error) { return f.Store.AwaitPermits(ctx, req) })
}

// RenewPermits implements semaphore.Store.
func (f *Faulty) RenewPermits(ctx context.Context, reqs []semaphore.PermitRequest) ([]bool, error) {
	return disturb(ctx, f, RenewPermits, func() ([]bool, error) { return f.Store.RenewPermits(ctx, reqs) })
}

// ReleasePermits implements semaphore.Store.
func (f *Faulty) ReleasePermits(ctx context.Context, reqs []semaphore.PermitRequest) ([]bool, error) {
	return disturb(ctx, f, ReleasePermits, func() ([]bool, error) { return f.Store.ReleasePermits(ctx, reqs) })
}

// InspectPermits implements semaphore.Store.
func (f *Faulty) InspectPermits(ctx context.Context, name, key string) (semaphore.State, error) {
	return disturb(ctx, f, InspectPermits, func() (semaphore.State, error) { return f.Store.InspectPermits(ctx, name, key) })
}

// ListPermits implements semaphore.Store. A fault is an error that it yields.
func (f *Faulty) ListPermits(ctx context.Context, name string) iter.Seq2[semaphore.State, error] {
	return disturbList(ctx, f, ListPermits, f.Store.ListPermits(ctx, name))
}

// CountDownLatch implements semaphore.LatchStore.
func (f *Faulty) CountDownLatch(ctx context.Context, req semaphore.LatchRequest, participant string) (int, error) {
	return disturb(ctx, f, CountDownLatch, func() (int, error) { return f.Store.CountDownLatch(ctx, req, participant) })
}

// InspectLatch implements semaphore.LatchStore.
func (f *Faulty) InspectLatch(ctx context.Context, req semaphore.LatchRequest) (int, error) {
	return disturb(ctx, f, InspectLatch, func() (int, error) { return f.Store.InspectLatch(ctx, req) })
}

// AwaitLatch implements semaphore.LatchStore.
func (f *Faulty) AwaitLatch(ctx context.Context, req semaphore.LatchRequest) error {
	_, err := disturb(ctx, f, AwaitLatch, func() (struct{}, error) { return struct{}{}, f.Store.AwaitLatch(ctx, req) })
	return err
}
