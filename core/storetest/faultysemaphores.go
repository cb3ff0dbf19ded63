package storetest

import (
	"context"
	"iter"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// AcquirePermits implements store.Permits.
func (f *Faulty) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	return disturb(ctx, f, AcquirePermits, func() (store.PermitReply, error) { return f.Store.AcquirePermits(ctx, req) })
}

// AwaitPermits implements store.Permits.
func (f *Faulty) AwaitPermits(ctx context.Context, req store.PermitRequest) (store.Grant, error) {
	return disturb(ctx, f, AwaitPermits, func() (store.Grant, error) { return f.Store.AwaitPermits(ctx, req) })
}

// RenewPermits implements store.Permits.
func (f *Faulty) RenewPermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	return disturb(ctx, f, RenewPermits, func() ([]bool, error) { return f.Store.RenewPermits(ctx, reqs) })
}

// ReleasePermits implements store.Permits.
func (f *Faulty) ReleasePermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	return disturb(ctx, f, ReleasePermits, func() ([]bool, error) { return f.Store.ReleasePermits(ctx, reqs) })
}

// InspectPermits implements store.Permits.
func (f *Faulty) InspectPermits(ctx context.Context, name, key string) (store.SemaphoreState, error) {
	return disturb(ctx, f, InspectPermits, func() (store.SemaphoreState, error) { return f.Store.InspectPermits(ctx, name, key) })
}

// ListPermits implements store.Permits. A fault is an error that it yields.
func (f *Faulty) ListPermits(ctx context.Context, name string) iter.Seq2[store.SemaphoreState, error] {
	return disturbList(ctx, f, ListPermits, f.Store.ListPermits(ctx, name))
}

// CountDownLatch implements store.Latches.
func (f *Faulty) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	return disturb(ctx, f, CountDownLatch, func() (int, error) { return f.Store.CountDownLatch(ctx, req, participant) })
}

// InspectLatch implements store.Latches.
func (f *Faulty) InspectLatch(ctx context.Context, req store.LatchRequest) (int, error) {
	return disturb(ctx, f, InspectLatch, func() (int, error) { return f.Store.InspectLatch(ctx, req) })
}

// AwaitLatch implements store.Latches.
func (f *Faulty) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	_, err := disturb(ctx, f, AwaitLatch, func() (struct{}, error) { return struct{}{}, f.Store.AwaitLatch(ctx, req) })
	return err
}
