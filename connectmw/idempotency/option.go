package idempotency

import (
	"fmt"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// KeyField reads the idempotency key of a call that has none in its header from a string field of
// the request: "request_id" (AIP-155) if not set, none if it is empty. A request without such a
// field, or with an empty one, has no key. A call with both must have the same key in both.
func KeyField(name string) policy.RPCIdempotencyOption {
	return setting.Func(func(s *setting.Settings) { s.KeyField = name })
}

// KeyFrom reads the idempotency key with key instead of from header and field: from another header
// field, or with connectmw.ByField from any field of the request. [KeyField] then says nothing. The
// key has 1 to 255 printable ASCII characters, and is taken as it is. If key returns
// policy.ErrNoKey, or an empty key, the call has none: it is refused with invalid_argument with
// policy.Required, and otherwise runs unguarded, or as policy.Dedupe says. Any other error is the
// server's: internal.
//
// Streams are asked for their key too, unless [PassStreams], and a stream that has one is refused.
// It panics if key is nil.
func KeyFrom(key connectmw.KeyFunc) policy.RPCIdempotencyOption {
	if key == nil {
		panic("idempotency: KeyFrom: nil key")
	}
	return setting.Func(func(s *setting.Settings) { s.Key = key })
}

// Fingerprint makes the result of f stand for the request in the fingerprint of a call, by which a
// repeat of a call is recognised. So an application compares only some fields of the request, or
// adds to it: a tenant from the header. The method remains part of the fingerprint. f must not
// change the request. If it returns an error, the call is refused as the client's mistake, with
// invalid_argument. Fingerprint panics if f is nil, and New if there is policy.KeyAlone as well.
func Fingerprint(f func(call *connectmw.Call) ([]byte, error)) policy.RPCIdempotencyOption {
	return setting.Given("idempotency: Fingerprint", f, func(s *setting.Settings) { s.CallFingerprint = f })
}

// KeepCodes keeps and replays answers with these codes, whatever the table in docs/idempotency.md
// says. It panics on a value that is no code.
func KeepCodes(list ...connect.Code) policy.RPCIdempotencyOption {
	return codeOption("KeepCodes", true, list)
}

// ReleaseCodes does not keep answers with these codes, even if the attempt may have had effects:
// the next call with the same key runs. The table in docs/idempotency.md says which are released
// without it. It panics on a value that is no code.
func ReleaseCodes(list ...connect.Code) policy.RPCIdempotencyOption {
	return codeOption("ReleaseCodes", false, list)
}

func codeOption(name string, keep bool, list []connect.Code) policy.RPCIdempotencyOption {
	for _, code := range list {
		if code == 0 || code > connect.CodeUnauthenticated { // the last one
			panic(fmt.Sprintf("idempotency: %s: %d is no code", name, uint32(code)))
		}
	}
	return setting.Func(func(s *setting.Settings) {
		for _, code := range list {
			s.Keep[int(code)] = keep
		}
	})
}

// PassStreams runs streams as if there were no guard, whether or not they carry a key: a client
// that sends one twice has it run twice. Without it, streams that carry a key are refused, and all
// of them with policy.Required.
func PassStreams() policy.RPCIdempotencyOption {
	return setting.Func(func(s *setting.Settings) { s.PassStreams = true })
}
