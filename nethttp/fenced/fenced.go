// Package fenced refuses requests of holders that have lost their lock, as net/http middleware:
//
//	mux.Handle("PUT /carts/{id}", fenced.New(marks, nethttp.ByPathValue("id"))(saveCart))
//
// [Transport] sends the fence, in the client that holds the lock.
//
// The mechanism behind it is the fence of a lock: see package [fence].
package fenced

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/internal/adapter"
)

// New returns middleware that runs the handler of a request whose fence is not lower than the
// largest seen for the request's key, and answers without the handler otherwise:
//
//   - 412 with a problem body (RFC 9457) of type stale-fence if a larger fence has been seen:
//     others have had the lock since the sender lost it;
//   - 428 if the request has no fence, unless policy.AllowUnfenced lets it pass;
//   - 400 if it has several fences, or one that cannot be read; no key, one of more than 1,024
//     bytes, or one that the checker has no place for;
//   - 503 with Retry-After if the checker's store is unavailable. With policy.RunUnprotected the
//     handler runs all the same, and the answer has "Fence-Status: bypassed";
//   - 500 if the application has not provided the key, which is logged once (policy.Logger), or if
//     the key function fails, or the checker in another way.
//
// The fence is the value of the header field fence.Header, which [Transport] sends. The key is the
// resource that the request works on. All clients that write it must hold the same lock, since
// fences of different locks cannot be compared. Once a fence has passed, every lower one is
// refused, whatever the outcome of the request; the fence of a shared lease has no such effect.
//
// The fence is compared before the handler runs. A handler that is paused after that can still
// write outdated data. Let it compare again where it writes, by redisfence's Set or sqlfence's
// Exec, with the token that fence.FromContext finds. If the resource cannot compare, run the
// handlers of a key one at a time, so that no newer fence passes while one runs: put the middleware
// behind concurrency, with a semaphore of one, on a memory store if only one process uses the
// resource.
//
// It stands behind authentication and authorisation, since a client that sends a large fence locks
// out all others. It stands behind idempotency, so that a client that has lost the lock still gets
// the answers to its earlier requests.
//
// Options are policy.AllowUnfenced, policy.RunUnprotected, nethttp.Unless, nethttp.OnError and
// nethttp.OnDeny, and the options of package policy for every middleware. New panics if checker or
// key is nil; the returned function panics if the handler is nil.
func New(checker fence.Checker, key nethttp.KeyFunc, opts ...policy.FencedOption) func(http.Handler) http.Handler {
	return adapter.Handler("fenced", httpmw.Fenced(adapter.NetHTTP{}, checker, adapter.Key(key), opts))
}
