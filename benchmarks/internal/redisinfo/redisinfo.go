// Package redisinfo reads the load on a Redis server from its INFO.
package redisinfo

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Reading is the state of a server's counters.
type Reading struct {
	// Sent is how many commands clients have sent. A script counts as one, without the commands
	// that it calls. The first commands of a connection, and INFO, do not count.
	Sent int64
	// CPU is the processor time that the server has used.
	CPU time.Duration
	// Memory is the memory of the server in bytes.
	Memory int64
}

// onlySent are the commands that clients send, and that no script of a contender calls.
func onlySent(command string) bool {
	switch command {
	case "eval", "eval_ro", "evalsha", "evalsha_ro", "fcall", "fcall_ro", "ping", "wait", "watch", "multi", "exec",
		"subscribe", "ssubscribe", "psubscribe", "unsubscribe":
		return true
	}
	return false
}

// Read reads the counters. The server counts a command in the same way whether a client or a script
// has called it: besides scripts and the like, only those named in also are counted as sent.
func Read(ctx context.Context, client redis.UniversalClient, also ...string) (Reading, error) {
	text, err := client.Info(ctx, "everything").Result()
	if err != nil {
		return Reading{}, err
	}
	var r Reading
	for line := range strings.Lines(text) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch command, ok := strings.CutPrefix(field, "cmdstat_"); {
		case ok && (onlySent(command) || slices.Contains(also, command)):
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			n, err := strconv.ParseInt(calls, 10, 64)
			if err != nil {
				return Reading{}, fmt.Errorf("redisinfo: %s: %w", line, err)
			}
			r.Sent += n
		case field == "used_cpu_user" || field == "used_cpu_sys":
			s, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return Reading{}, fmt.Errorf("redisinfo: %s: %w", line, err)
			}
			r.CPU += time.Duration(s * float64(time.Second))
		case field == "used_memory":
			if r.Memory, err = strconv.ParseInt(value, 10, 64); err != nil {
				return Reading{}, fmt.Errorf("redisinfo: %s: %w", line, err)
			}
		}
	}
	return r, nil
}

// Sub returns the difference to an earlier reading.
func (r Reading) Sub(before Reading) Reading {
	return Reading{r.Sent - before.Sent, r.CPU - before.CPU, r.Memory - before.Memory}
}
