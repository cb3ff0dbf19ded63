package redisstore

import (
	"embed"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
)

// Each script is one atomic step; its file lists its keys and arguments.
//
//go:embed scripts
var scriptFiles embed.FS

var allScripts []*script.Script

var (
	takeTokens       = newScript("take_tokens")
	beginOperation   = newScript("begin_operation")
	settleOperation  = newScript("settle_operation")
	abandonOperation = newScript("abandon_operation")
	markOperation    = newScript("mark_operation")
	renewOperation   = newScript("renew_operation")
	// settleSmall is settleOperation without a result, which may be written even if the server's
	// memory is full.
	settleSmall = addScript(strings.Replace(scriptText("settle_operation"), "#!lua", "#!lua flags=allow-oom", 1))

	acquireLock   = newScript("acquire_lock")
	beatLock      = newScript("beat_lock")
	releaseLock   = newScript("release_lock")
	renewLock     = newScript("renew_lock")
	downgradeLock = newScript("downgrade_lock")
	inspectLock   = newScript("inspect_lock")
	forceUnlock   = newScript("force_unlock")
	raiseFence    = newScript("raise_fence")

	acquirePermit  = newScript("acquire_permit")
	beatPermit     = newScript("beat_permit")
	renewPermit    = newScript("renew_permit")
	releasePermit  = newScript("release_permit")
	inspectPermits = newScript("inspect_permits")
	countDownLatch = newScript("count_down_latch")
	awaitLatch     = newScript("await_latch")
)

func newScript(name string) *script.Script { return addScript(scriptText(name)) }

func addScript(text string) *script.Script {
	s := script.NewScript(text)
	allScripts = append(allScripts, s)
	return s
}

func scriptText(name string) string { return script.Text(scriptFiles, name) }
