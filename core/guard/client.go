package guard

import (
	"context"

	"github.com/lockkeeper/lockkeeper/internal/base/clientctx"
)

// ClientContext returns the context of the client whose request ctx belongs to. It ends when the
// client disconnects before it has its answer, with the server's cause. A handler behind the
// idempotency middleware, whose own context does not end then, finds out by it whether the client
// still waits:
//
//	select {
//	case <-guard.ClientContext(ctx).Done():
//		return errClientGone // nothing has been charged yet
//	case price := <-quote:
//		...
//	}
//
// Without such middleware in front, and for a context that never ends, it is ctx itself. An
// HTTP/1.1 server notices a disconnected client only after the request's body was read, as the
// middleware does. Use only the end of the context: it may have fewer values than ctx.
func ClientContext(ctx context.Context) context.Context { return clientctx.Context(ctx) }
