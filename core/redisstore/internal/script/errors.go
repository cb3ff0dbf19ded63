package script

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// ErrOddReply is a reply that no script of the store gives.
var ErrOddReply = fmt.Errorf("%w: redis: unexpected reply", store.ErrUnconfirmed)

// Refused reports whether the server has refused a command for a reason that lasts. A refused
// script has failed before its first write.
func Refused(err error) bool { return redisfault.IsReply(err) && !didNotRun(err) }

// didNotRun reports whether the error proves that the command was not carried out, for a reason
// that may soon be gone: there was no connection, or the server was not ready.
func didNotRun(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	if errors.Is(err, errConnectionLimit) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed) {
		return true
	}
	r, _ := redisfault.Find(err)
	return r.Verdict == redisfault.Outage || r.Verdict == redisfault.Elsewhere && !isNoScript(err) ||
		r.Cause == store.ReadOnly || redisfault.Says(err, "MOVED")
}

// IsTorn reports whether the keys of a call are on two nodes, since their slot is moving. The call
// has not run; calls for single keys would.
func IsTorn(err error) bool { return redisfault.Says(err, "TRYAGAIN") }

// isNoScript reports whether a server does not have a script. Proxies spell the error "ERR
// NOSCRIPT".
func isNoScript(err error) bool { return replyContains(err, "NOSCRIPT") }

// isNoShebang reports whether a server does not understand a script's first line.
func isNoShebang(err error) bool { return replyContains(err, "Error compiling script") }

// IsWrongType reports whether a key has a type that the store does not write there.
func IsWrongType(err error) bool { return replyContains(err, "WRONGTYPE") }

// isDamage reports whether a key of the store has a value that the store does not write.
func isDamage(err error) bool {
	return errors.Is(err, ErrOddReply) || IsWrongType(err) || replyContains(err, "record of an unknown layout")
}

func replyContains(err error, text string) bool {
	return redisfault.IsReply(err) && strings.Contains(err.Error(), text)
}
