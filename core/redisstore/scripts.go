package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // the server names scripts so
	_ "embed"
	"encoding"
	"encoding/hex"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// Each script is one atomic step; its file says what its keys and arguments are.
var (
	//go:embed scripts/take_tokens.lua
	takeTokensSource string
	//go:embed scripts/scope_constants.lua
	scopeConstantsSource string
	//go:embed scripts/scope.lua
	scopeSource string
	//go:embed scripts/begin_operation_common.lua
	beginOperationCommonSource string
	//go:embed scripts/begin_operation.lua
	beginOperationSource string
	//go:embed scripts/settle_operation_common.lua
	settleOperationCommonSource string
	//go:embed scripts/settle_operation.lua
	settleOperationSource string
	//go:embed scripts/abandon_operation.lua
	abandonOperationSource string
	//go:embed scripts/mark_operation.lua
	markOperationSource string
	//go:embed scripts/renew_operation.lua
	renewOperationSource string
	//go:embed scripts/raise_fence.lua
	raiseFenceSource string
	//go:embed scripts/integers.lua
	integersSource string
	//go:embed scripts/constants.lua
	constantsSource string
	//go:embed scripts/queue.lua
	queueSource string
	//go:embed scripts/lock.lua
	lockSource string
	//go:embed scripts/acquire_lock_common.lua
	acquireLockCommonSource string
	//go:embed scripts/acquire_lock.lua
	acquireLockSource string
	//go:embed scripts/beat_lock_common.lua
	beatLockCommonSource string
	//go:embed scripts/beat_lock.lua
	beatLockSource string
	//go:embed scripts/release_lock_common.lua
	releaseLockCommonSource string
	//go:embed scripts/release_lock.lua
	releaseLockSource string
	//go:embed scripts/renew_lock_common.lua
	renewLockCommonSource string
	//go:embed scripts/renew_lock.lua
	renewLockSource string
	//go:embed scripts/downgrade_lock.lua
	downgradeLockSource string
	//go:embed scripts/inspect_lock.lua
	inspectLockSource string
	//go:embed scripts/force_unlock.lua
	forceUnlockSource string
	//go:embed scripts/semaphore.lua
	semaphoreSource string
	//go:embed scripts/acquire_permit_common.lua
	acquirePermitCommonSource string
	//go:embed scripts/acquire_permit.lua
	acquirePermitSource string
	//go:embed scripts/beat_permit.lua
	beatPermitSource string
	//go:embed scripts/renew_permit.lua
	renewPermitSource string
	//go:embed scripts/release_permit_common.lua
	releasePermitCommonSource string
	//go:embed scripts/release_permit.lua
	releasePermitSource string
	//go:embed scripts/inspect_permits.lua
	inspectPermitsSource string
	//go:embed scripts/count_down_latch.lua
	countDownLatchSource string
	//go:embed scripts/await_latch.lua
	awaitLatchSource string

	takeTokens       = newScript(takeTokensSource, integersSource)
	beginOperation   = newOperationScript(beginOperationSource, beginOperationCommonSource)
	settleOperation  = newOperationScript(settleOperationSource, settleOperationCommonSource)
	abandonOperation = newOperationScript(abandonOperationSource, "")
	markOperation    = newScript(markOperationSource)
	renewOperation   = newOperationScript(renewOperationSource, "")
	// settleSmall is settleOperation for what must be written though the server's memory is full.
	settleSmall = newOperationScript(strings.Replace(settleOperationSource, "#!lua", "#!lua flags=allow-oom", 1), settleOperationCommonSource)

	acquireLock   = newLockScript(acquireLockSource, acquireLockCommonSource)
	beatLock      = newLockScript(beatLockSource, beatLockCommonSource)
	releaseLock   = newLockScript(releaseLockSource, releaseLockCommonSource)
	renewLock     = newLockScript(renewLockSource, renewLockCommonSource)
	downgradeLock = newLockScript(downgradeLockSource, "")
	inspectLock   = newLockScript(inspectLockSource, "")
	forceUnlock   = newLockScript(forceUnlockSource, "")
	raiseFence    = newScript(raiseFenceSource)

	acquirePermit  = newPermitScript(acquirePermitSource, acquirePermitCommonSource)
	beatPermit     = newPermitScript(beatPermitSource, "")
	renewPermit    = newPermitScript(renewPermitSource, "")
	releasePermit  = newPermitScript(releasePermitSource, releasePermitCommonSource)
	inspectPermits = newPermitScript(inspectPermitsSource, "")
	countDownLatch = newScript(countDownLatchSource)
	awaitLatch     = newScript(awaitLatchSource)

	allScripts = []*script{
		takeTokens, beginOperation, settleOperation, settleSmall, abandonOperation, markOperation, renewOperation,
		acquireLock, beatLock, releaseLock, renewLock, downgradeLock, inspectLock, forceUnlock, raiseFence,
		acquirePermit, beatPermit, renewPermit, releasePermit, inspectPermits, countDownLatch, awaitLatch,
	}
)

// script is a Lua script in two forms. The modern one starts with a line that declares its flags,
// which Redis understands from version 7 on; the plain one lacks it. A script whose first line is a comment
// is plain in both: see begin_operation.lua.
type script struct{ modern, plain source }

type source struct{ text, sha []byte }

// anyRoom stands before the plain form of scripts that may write though the server's memory is full. Before
// version 7 Redis refuses only the first write of a script then, and not one that needs no room, as this one
// does, which changes nothing whatever the key has.
const anyRoom = "redis.pcall('HDEL', KEYS[1], '')"

// newScript makes a script of a text whose first line declares its flags. What it shares with others
// stands between that line and the rest.
func newScript(text string, before ...string) *script {
	flags, rest, _ := strings.Cut(text, "\n")
	rest = "\n" + strings.Join(before, "") + rest
	plain := rest
	if strings.Contains(flags, "allow-oom") {
		plain = anyRoom + rest
	}
	return &script{newSource(flags + rest), newSource(plain)} // the line numbers stay
}

// newOperationScript makes a script of operations, whose common case stands before what costs it time.
func newOperationScript(text, common string) *script {
	return newScript(text, integersSource, scopeConstantsSource, common, scopeSource)
}

// newLockScript makes a script of locks, whose common cases stand before what costs them time.
func newLockScript(text, common string) *script {
	return newScript(text, integersSource, constantsSource, common, queueSource, lockSource)
}

func newPermitScript(text, common string) *script {
	return newScript(text, integersSource, constantsSource, common, queueSource, semaphoreSource)
}

func newSource(text string) source {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // the server names scripts so
	return source{[]byte(text), hex.AppendEncode(nil, sum[:])}
}

// in returns the form that the server understands, as far as is known.
func (s *script) in(st *Store) *source {
	if st.plainScripts.Load() {
		return &s.plain
	}
	return &s.modern
}

// load puts every script on the node before the first one is used, so that no call sees NOSCRIPT
// in normal running. It is best effort: eval falls back to sending the text.
//
// It returns an error if the server refused the client's password, or wants one: a longer command of a
// client that is not authenticated ends its connection, and then no reply says why. The server is asked
// again a second later.
//
// Loading goes on when its caller leaves, so that a server which is far away has the scripts in the end.
func (n *node) load(ctx context.Context) error {
	if n.loaded.Load() {
		return nil
	}
	if !n.loading.TryLock() {
		return n.lockedOut()
	}
	if time.Now().Before(n.nextLoad) {
		n.loading.Unlock()
		return n.lockedOut()
	}
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		defer n.loading.Unlock()
		s := n.store
		c := s.deadlines.context(s.life, n, s.unhurried(), s.unhurried())
		defer s.deadlines.giveBack(c)
		err := n.eachClient(c, s.loadOn)
		if redisfault.IsUnauthenticated(err) {
			n.refusal.Store(&err)
		} else {
			n.refusal.Store(nil)
		}
		if err != nil {
			// What does not work now, or is forbidden, must not cost every call that could do without.
			n.nextLoad = time.Now().Add(reloadEvery)
		} else {
			n.loaded.Store(true)
		}
	}()
	select {
	case <-loaded:
	case <-ctx.Done():
	}
	return n.lockedOut()
}

// lockedOut is why no call can work, if that is known.
func (n *node) lockedOut() error {
	if err := n.refusal.Load(); err != nil {
		return *err
	}
	return nil
}

// reloadEvery is for how long scripts that could not be loaded are not tried again.
const reloadEvery = time.Second

// loadOn loads the scripts on one server, in one round trip, after one that finds out whether it may.
func (s *Store) loadOn(ctx context.Context, client *redis.Client) error {
	if err := client.Ping(ctx).Err(); redisfault.IsUnauthenticated(err) {
		return err
	}
	for {
		plain := s.plainScripts.Load()
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, script := range allScripts {
				pipe.ScriptLoad(ctx, string(script.in(s).text))
			}
			return nil
		})
		if !isNoShebang(err) || plain {
			return err
		}
		s.plainScripts.Store(true)
	}
}

// onceCmd is a command that the client never sends again by itself: the store knows better when to. The
// client would repeat until the deadline what a server has refused, since it is a replica or paused.
type onceCmd struct{ *redis.Cmd }

func (onceCmd) NoRetry() bool { return true }

// eval runs a script on the node of the call. It is sent again, while there is time, if it has not run and the
// reason may soon be gone; unless once, also if the connection broke.
func (s *Store) eval(ctx context.Context, once bool, sc *script, keys []string, args ...any) (reply any, err error) {
	n := callOf(ctx).node
	if err := n.load(ctx); err != nil {
		return nil, err
	}
	var tries retries
	for {
		if reply, err = s.evalOnce(ctx, n, sc, keys, args); err == nil || !tries.again(ctx, err, once) {
			return reply, err
		}
	}
}

func (s *Store) evalOnce(ctx context.Context, n *node, sc *script, keys []string, args []any) (any, error) {
	src := sc.in(s)
	reply, err := s.process(ctx, byHash, src.sha, keys, args)
	if isNoScript(err) {
		n.loaded.Store(false)
		reply, err = s.process(ctx, byText, src.text, keys, args)
	}
	if isNoShebang(err) && src == &sc.modern {
		s.plainScripts.Store(true)
		reply, err = s.process(ctx, byText, sc.plain.text, keys, args)
	}
	return reply, err
}

func (s *Store) process(ctx context.Context, command any, script []byte, keys []string, args []any) (any, error) {
	cmd := newEval(ctx, command, script, keys, args)
	sent := wireOf(ctx)
	before := sent.count()
	_ = s.client.Process(ctx, onceCmd{cmd})
	reply, err := cmd.Result()
	if isReply(err) { // a failure that was reported settles it
		sent.settle(before)
	}
	return reply, err
}

// The commands that run a script. In an interface already: a string would cost memory each time.
var byHash, byText any = "evalsha", "eval"

func newEval(ctx context.Context, command any, script []byte, keys []string, args []any) *redis.Cmd {
	e := new(struct { // one piece of memory instead of two
		wired
		few [24]any
	})
	e.wired = wired{script, wireOf(ctx)}
	return newEvalIn(ctx, e.few[:0], command, &e.wired, keys, args)
}

// newEvalOf has the script in an argument.
func newEvalOf(ctx context.Context, command any, script encoding.BinaryMarshaler, keys []string, args []any) *redis.Cmd {
	return newEvalIn(ctx, make([]any, 0, 3+len(keys)+len(args)), command, script, keys, args)
}

func newEvalIn(ctx context.Context, all []any, command any, script encoding.BinaryMarshaler, keys []string, args []any) *redis.Cmd {
	all = append(all, command, script, len(keys))
	for i := range keys {
		all = append(all, &keys[i]) // in an interface a string costs memory, and a pointer to one does not
	}
	return redis.NewCmd(ctx, append(all, args...)...)
}

// scriptCall is one run of a script.
type scriptCall struct {
	script *script
	keys   []string
	args   []any
}

// evaluated is what became of one.
type evaluated struct {
	reply any
	err   error
	// open reports whether the script may have run, and nobody knows whether it has.
	open bool
}

// evalEach runs scripts in one pipeline, and in further ones those that are worth to be sent again: see eval.
func (s *Store) evalEach(ctx context.Context, once bool, calls []scriptCall) []evaluated {
	n := callOf(ctx).node
	if err := n.load(ctx); err != nil {
		return slices.Repeat([]evaluated{{err: err}}, len(calls))
	}
	all := s.evalPipelined(ctx, n, once, calls)
	var tries retries
	for {
		var failed []int
		for i := range all {
			if all[i].err != nil && worthRetry(all[i].err, once) {
				failed = append(failed, i)
			}
		}
		if len(failed) == 0 || !tries.again(ctx, all[failed[0]].err, once) {
			return all
		}
		for i, e := range s.evalPipelined(ctx, n, once, pick(calls, failed)) {
			e.open = e.err != nil && (e.open || all[failed[i]].open)
			all[failed[i]] = e
		}
	}
}

// evalPipelined runs scripts in one pipeline, and in a second one those that the server turns out not to have.
func (s *Store) evalPipelined(ctx context.Context, n *node, once bool, calls []scriptCall) []evaluated {
	all := s.pipeline(ctx, calls, func(i int) (any, []byte) { return byHash, calls[i].script.in(s).sha })
	var missing []int
	for i := range all {
		if isNoScript(all[i].err) {
			missing = append(missing, i)
		}
	}
	if len(missing) == 0 {
		return all
	}
	n.loaded.Store(false)
	again := pick(calls, missing)
	known := make(map[*script]bool) // once the server has seen the text, which comes first
	for i, e := range s.pipeline(ctx, again, func(i int) (any, []byte) {
		if src := again[i].script.in(s); known[again[i].script] {
			return byHash, src.sha
		} else {
			known[again[i].script] = true
			return byText, src.text
		}
	}) {
		if isNoScript(e.err) || isNoShebang(e.err) { // they go to several servers, or to an old one
			sent := wireOf(ctx)
			before := sent.count()
			e.reply, e.err = s.eval(ctx, once, again[i].script, again[i].keys, again[i].args...)
			e.open = e.err != nil && sent.count() > before
		}
		e.open = e.err != nil && (e.open || all[missing[i]].open)
		all[missing[i]] = e
	}
	return all
}

// pipeline sends scripts, each by its hash or as it is.
func (s *Store) pipeline(ctx context.Context, calls []scriptCall, as func(i int) (command any, script []byte)) []evaluated {
	sent := wireOf(ctx)
	cmds := make([]*redis.Cmd, len(calls))
	scripts := make([]wiredEach, len(calls))
	pipe := s.client.Pipeline()
	for i, c := range calls {
		command, text := as(i)
		scripts[i].wired = wired{text, sent}
		cmds[i] = newEvalOf(ctx, command, &scripts[i], c.keys, c.args)
		_ = pipe.Process(ctx, onceCmd{cmds[i]})
	}
	_, _ = pipe.Exec(ctx)
	all := make([]evaluated, len(calls))
	for i, cmd := range cmds {
		reply, err := cmd.Result()
		all[i] = evaluated{reply, err, err != nil && scripts[i].writes.Load() > 0 && !isReply(err)}
	}
	return all
}

// wiredEach is a wired argument that counts for itself how often it has been written.
type wiredEach struct {
	wired
	writes atomic.Int32
}

func (a *wiredEach) MarshalBinary() ([]byte, error) {
	script, err := a.wired.MarshalBinary()
	if err == nil {
		a.writes.Add(1)
	}
	return script, err
}
