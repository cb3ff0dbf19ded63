package ratelimit

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Costs makes a call cost what estimate returns, instead of one token: that is taken before the
// handler runs, all or nothing, and replaced by what the handler reports when it knows, also late
// in a stream:
//
//	if r, ok := tokenbucket.FromContext(ctx); ok { // not while the store is down, with policy.FailOpen
//		err := r.Use("tokens", usage.Total)
//	}
//
// When the handler has returned, or panicked, or its client has left, the reported use is charged
// (tokenbucket.Reservation's Settle), and the estimate of units without a report stays. So it does
// if the process dies. The call ends when it is settled, if it has not cost what was estimated. A
// settlement that fails is reported to OnError, and not repeated; so is one that overdraws a bucket
// by more than it may be (tokenbucket.Limit's Overdraft).
//
// An estimate above the burst of a limit is reduced to it. One of nothing passes in any case, also
// while the key is held, or a bucket is overdrawn. A negative one, and a unit that no limit counts,
// are mistakes of the application: internal, logged once, and nothing is charged. Of the limits of
// a chain, the handler finds the reservation of the innermost that has this option. Costs panics if
// estimate is nil.
func Costs(estimate func(call *connectmw.Call) tokenbucket.Cost) policy.RPCRateLimitOption {
	return setting.Given("ratelimit: Costs", estimate, func(s *setting.Settings) { s.Costs = estimate })
}

// ChargeCodes charges the calls that end with one of these codes, and no others: with
// connect.CodeUnauthenticated and connect.CodePermissionDenied, attempts to log in that fail. The
// possible cost of a call is taken before its handler runs, and given back when it ends with
// another code, so that of many attempts at once no more run than the limit has room for. The
// refusal of a call for which others that still run leave no room asks for a retry after their
// recent duration, 1 to 30 s. Tokens that the handler has reported as used
// (tokenbucket.Reservation's Use) are not given back.
//
// Charged too are a call whose handler panics, and one whose client left, or whose deadline was
// over, before its handler returned. Calls that succeed are charged by no code. Tokens that cannot
// be given back, since the store is unavailable, stay charged, which is reported to OnError. The
// call ends when the tokens are given back.
//
// The code is the one that passes this interceptor: an interceptor that changes codes belongs
// behind it. ChargeCodes panics without any code, and on a value that is no code.
func ChargeCodes(list ...connect.Code) policy.RPCRateLimitOption {
	if len(list) == 0 {
		panic("ratelimit: ChargeCodes: no codes")
	}
	charged := make(map[int]bool, len(list))
	for _, code := range list {
		if code == 0 || code > connect.CodeUnauthenticated { // the last one
			panic(fmt.Sprintf("ratelimit: ChargeCodes: %d is no code", uint32(code)))
		}
		charged[int(code)] = true
	}
	return setting.Func(func(s *setting.Settings) { s.Charged = charged })
}

// ask returns what a call asks for, nil for a token.
func (i *interceptor) ask(call *connectmw.Call) *middleware.Ask {
	if !i.asks {
		return nil
	}
	ask := &middleware.Ask{Settles: i.settles, Report: func(err error) { i.hooks.Report(call, err) }}
	if i.costs != nil {
		ask.Costs = func() tokenbucket.Cost { return i.costs(call) }
	}
	return ask
}

// settle calls a handler, and settles what it has used, even if it panics.
func (i *interceptor) settle(ctx context.Context, ask *middleware.Ask, handler func(context.Context) error) error {
	charged := true
	defer func() { ask.Settle(ctx, charged) }()
	handlers := ctx
	if i.costs != nil {
		handlers = ask.Context(ctx)
	}
	err := handler(handlers)
	charged = i.charged == nil || ctx.Err() != nil || i.charged[int(adapter.CodeOf(err))]
	return err
}
