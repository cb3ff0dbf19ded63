package redisstore

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// explain converts an error of the client to one of the store: unconfirmed if the request may have
// run.
func explain(err error, open bool) error { return redisfault.Explain(err, open) }

// errOddReply is a reply that no script of this package gives.
var errOddReply = fmt.Errorf("%w: redis: unexpected reply", store.ErrUnconfirmed)

// isReply reports whether the server replied with an error. A script of this package that fails so
// has failed before its first write.
func isReply(err error) bool { return redisfault.IsReply(err) }

// notNow are the error replies of a server that has not begun the command.
var notNow = []string{
	"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "MOVED", "ASK", "NOREPLICAS", "ERR max number of clients",
}

// didNotRun reports whether the error proves that the command was not carried out, for a reason
// that may soon be gone: there was no connection, or the server was not ready.
func didNotRun(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed) {
		return true
	}
	for _, prefix := range notNow {
		if redisfault.Says(err, prefix) || isReply(err) && strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}

// isNoScript also knows the spelling of proxies, "ERR NOSCRIPT".
func isNoScript(err error) bool {
	return err != nil && isReply(err) && strings.Contains(err.Error(), "NOSCRIPT")
}

// isNoShebang reports whether a server does not understand a script's first line.
func isNoShebang(err error) bool {
	return err != nil && isReply(err) && strings.Contains(err.Error(), "Error compiling script")
}

// isWrongType reports whether a key has a type that this package does not write there.
func isWrongType(err error) bool {
	return err != nil && isReply(err) && strings.Contains(err.Error(), "WRONGTYPE")
}

// isDamage reports whether a key of the store has a value that this package does not write.
func isDamage(err error) bool {
	return err != nil && (errors.Is(err, errOddReply) || isWrongType(err) ||
		isReply(err) && strings.Contains(err.Error(), "record of an unknown layout"))
}

func isOutOfMemory(err error) bool { return redisfault.IsOutOfMemory(err) }
