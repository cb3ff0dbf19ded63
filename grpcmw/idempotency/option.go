package idempotency

import (
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// KeyField has the idempotency key of a call that has none in its metadata be a string field of the
// request: "request_id" (AIP-155) if not set, none if it is empty. A request without such a field, or
// with an empty one, has no key. A call with both must have the same key in both.
func KeyField(name string) policy.RPCIdempotencyOption {
	return option(func(s *setting.RPCIdempotency) { s.KeyField = name })
}

// KeepCodes has answers with these codes kept and replayed, over the defaults: OK and the errors that
// would be the same again. CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, DATA_LOSS, and
// panics, are kept when the attempt is dirty (see guard.Attempt), which is how attempts begin, unless
// the guard allows re-runs. It panics on what is no code.
func KeepCodes(list ...codes.Code) policy.RPCIdempotencyOption {
	return codeOption("KeepCodes", true, list)
}

// ReleaseCodes has answers with these codes not kept: the next call with the same key runs. By default
// these are UNAUTHENTICATED, PERMISSION_DENIED, RESOURCE_EXHAUSTED and ABORTED, which say that nothing
// was done, and those of a failure (see [KeepCodes]) of attempts that are clean or whose guard allows
// re-runs. It panics on what is no code.
func ReleaseCodes(list ...codes.Code) policy.RPCIdempotencyOption {
	return codeOption("ReleaseCodes", false, list)
}

func codeOption(name string, keep bool, list []codes.Code) policy.RPCIdempotencyOption {
	for _, code := range list {
		if code > codes.Unauthenticated { // the last one
			panic(fmt.Sprintf("idempotency: %s: %d is no code", name, uint32(code)))
		}
	}
	return option(func(s *setting.RPCIdempotency) {
		for _, code := range list {
			s.Keep[uint32(code)] = keep
		}
	})
}

// PassStreams runs streams as if there were no guard, whether or not they carry a key: a client that
// sends one twice has it run twice. Without it, streams that carry a key are refused, and all of them
// with policy.Required.
func PassStreams() policy.RPCIdempotencyOption {
	return option(func(s *setting.RPCIdempotency) { s.PassStreams = true })
}

// Deny has refusals answered with the error that deny returns, which should be a status. The handler
// does not run. grpcmw.NewError makes one in which grpcmw.DenialOf finds the denial.
func Deny(deny func(call *grpcmw.Call, d policy.Denial) error) policy.RPCIdempotencyOption {
	if deny == nil {
		panic("idempotency: Deny: nil function")
	}
	return option(func(s *setting.RPCIdempotency) { s.Deny = deny })
}

type option func(*setting.RPCIdempotency)

func (o option) ApplyRPCIdempotency(s *setting.RPCIdempotency) { o(s) }
