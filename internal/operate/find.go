package operate

import (
	"context"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// FindLock returns the lock whose key has an ID, as it is now. It reports false if the lock is not in
// use. It lists the locks of the name.
func FindLock(ctx context.Context, st store.Documents, name, keyID string) (inspect.Key, bool, error) {
	return findLease(ctx, st, store.LockKind, name, keyID, inspect.Lock)
}

// FindSemaphore is FindLock for a semaphore.
func FindSemaphore(ctx context.Context, st store.Documents, name, keyID string) (inspect.Key, bool, error) {
	return findLease(ctx, st, store.SemaphoreKind, name, keyID, inspect.Semaphore)
}

func findLease(
	ctx context.Context, st store.Documents, kind, name, keyID string,
	look func(context.Context, any, string, string) (inspect.Key, error),
) (found inspect.Key, ok bool, err error) {
	able, err := store.As[store.LeaseLister](st)
	if err != nil {
		return found, false, err
	}
	for state, err := range able.ListLeases(ctx, kind+name) {
		if err != nil {
			return found, false, err
		}
		if KeyID(state.Key) == keyID {
			found, err = look(ctx, st, name, state.Key)
			return found, err == nil, err
		}
	}
	return found, false, nil
}

// FindTask returns the task whose key has an ID, as it is now; the buried one if there is no other. It
// reports false if there is none. It lists the tasks of the queue.
func FindTask(ctx context.Context, st store.Documents, queue, keyID string) (found inspect.DelayedTask, ok bool, err error) {
	able, err := store.As[store.TaskKeeper](st)
	if err != nil {
		return found, false, err
	}
	for _, buried := range []bool{true, false} {
		for t, err := range able.ListTasks(ctx, queue, buried) {
			if err != nil {
				return found, false, err
			}
			if KeyID(t.Key) != keyID {
				continue
			}
			if found, ok, err = inspect.Task(ctx, st, queue, t.Key); ok || err != nil {
				return found, ok, err
			}
		}
	}
	return found, false, nil
}
