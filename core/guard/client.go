package guard

import (
	"context"

	"github.com/lockkeeper/lockkeeper/internal/client"
)

// ClientContext returns the context of the client whose request ctx belongs to. It ends when the client
// leaves while its request is being answered, with the cause that the server gives it. In a handler
// behind the idempotency middleware, whose own context the client's leaving does not end, it says
// whether the client still waits:
//
//	select {
//	case <-guard.ClientContext(ctx).Done():
//		return errNobodyWaits // nothing has been charged yet
//	case price := <-quote:
//		...
//	}
//
// Without such middleware in front, and for a context that never ends, it is ctx itself. Over HTTP/1.1 a
// server notices that its client leaves once the request's body has been read, which the middleware has
// done. Only its end is of use: its values may be fewer than those of ctx.
func ClientContext(ctx context.Context) context.Context { return client.Context(ctx) }
