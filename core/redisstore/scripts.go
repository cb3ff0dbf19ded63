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
	holdTokens       = newScript("hold_tokens")
	beginOperation   = newScript("begin_operation")
	settleOperation  = newScript("settle_operation")
	abandonOperation = newScript("abandon_operation")
	markOperation    = newScript("mark_operation")
	renewOperation   = newScript("renew_operation")
	recordStep       = newScript("record_step")
	awaitOperation   = newScript("await_operation")
	inspectOperation = newScript("inspect_operation")
	resolveOperation = newScript("resolve_operation")
	// settleSmall is settleOperation without a result, which may be written even if the server's
	// memory is full.
	settleSmall = addScript(strings.Replace(scriptText("settle_operation"), "#!lua", "#!lua flags=allow-oom", 1))

	raiseFence = newScript("raise_fence")

	acquireLease   = newScript("acquire_lease")
	releaseLease   = newScript("release_lease")
	renewLease     = newScript("renew_lease")
	downgradeLease = newScript("downgrade_lease")
	revokeLease    = newScript("revoke_lease")
	inspectLease   = newScript("inspect_lease")
	beatLease      = newScript("beat_lease")
	beatLeases     = newScript("beat_leases")

	countDownLatch = newScript("count_down_latch")
	awaitLatch     = newScript("await_latch")

	putTask     = newScript("put_task")
	cancelTask  = newScript("cancel_task")
	takeTasks   = newScript("take_tasks")
	awaitTasks  = newScript("await_tasks")
	renewTasks  = newScript("renew_tasks")
	settleTasks = newScript("settle_tasks")
	reviveTask  = newScript("revive_task")
	inspectTask = newScript("inspect_task")

	putDocument    = newScript("put_document")
	getDocument    = newScript("get_document")
	listDocuments  = newScript("list_documents")
	removeDocument = newScript("remove_document")
)

func newScript(name string) *script.Script { return addScript(scriptText(name)) }

func addScript(text string) *script.Script {
	s := script.NewScript(text)
	allScripts = append(allScripts, s)
	return s
}

func scriptText(name string) string { return script.Text(scriptFiles, name) }
