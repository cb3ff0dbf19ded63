package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // the server names scripts so
	"embed"
	"encoding"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// Each script is one atomic step; its file lists its keys and arguments.
//
//go:embed scripts
var scriptFiles embed.FS

var (
	takeTokens       = newScript("take_tokens")
	beginOperation   = newScript("begin_operation")
	settleOperation  = newScript("settle_operation")
	abandonOperation = newScript("abandon_operation")
	markOperation    = newScript("mark_operation")
	renewOperation   = newScript("renew_operation")
	// settleSmall is settleOperation without a result, which may be written even if the server's
	// memory is full.
	settleSmall = scriptOf(strings.Replace(scriptText("settle_operation"), "#!lua", "#!lua flags=allow-oom", 1))

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

	allScripts = []*script{
		takeTokens, beginOperation, settleOperation, settleSmall, abandonOperation, markOperation, renewOperation,
		acquireLock, beatLock, releaseLock, renewLock, downgradeLock, inspectLock, forceUnlock, raiseFence,
		acquirePermit, beatPermit, renewPermit, releasePermit, inspectPermits, countDownLatch, awaitLatch,
	}
)

// script is a Lua script in two forms. The modern one starts with a line that declares its flags,
// which Redis supports from version 7 on; the plain one does not have it. A script whose first line
// is a comment has no flags in both: see begin_operation.lua.
type script struct{ modern, plain source }

type source struct{ text, sha []byte }

// anyRoom precedes the plain form of scripts that may write even if the server's memory is full.
// Before version 7 Redis then refuses only the first write of a script, and only if it needs
// memory. This one does not, and changes nothing.
const anyRoom = "redis.pcall('HDEL', KEYS[1], '')"

// newScript returns the script of a file.
func newScript(name string) *script { return scriptOf(scriptText(name)) }

// scriptText returns the text of a file. A line "--#include a b" stands for the libraries a and b,
// whose locals the lines after it use.
func scriptText(name string) string {
	file, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err)
	}
	return includeLine.ReplaceAllStringFunc(string(file), func(line string) string {
		var libraries strings.Builder
		for _, name := range strings.Fields(line)[1:] {
			libraries.WriteString(scriptText("lib/" + name))
		}
		return libraries.String()
	})
}

var includeLine = regexp.MustCompile(`(?m)^--#include( \w+)+$`)

// scriptOf returns the script of a text whose first line declares its flags.
func scriptOf(text string) *script {
	flags, rest, _ := strings.Cut(text, "\n")
	plain := "\n" + rest
	if strings.Contains(flags, "allow-oom") {
		plain = anyRoom + plain
	}
	return &script{newSource(text), newSource(plain)} // the line numbers stay
}

func newSource(text string) source {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // the server names scripts so
	return source{[]byte(text), hex.AppendEncode(nil, sum[:])}
}

// in returns the form that the server supports, as far as it is known.
func (s *script) in(st *Store) *source {
	if st.plainScripts.Load() {
		return &s.plain
	}
	return &s.modern
}

// load loads all scripts on the node before the first one is used, so that calls normally do not
// see NOSCRIPT. It is best effort: eval falls back to sending the text.
//
// It returns an error if the server refuses the client's password, or requires one: a long command
// of an unauthenticated client ends its connection without a reply that says why. Loading is
// retried a second later.
//
// Loading continues when its caller's context ends, so that a distant server eventually has the
// scripts.
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
		defer s.deadlines.release(c)
		err := n.eachClient(c, s.loadOn)
		if redisfault.IsUnauthenticated(err) {
			n.refusal.Store(&err)
		} else {
			n.refusal.Store(nil)
		}
		if err != nil {
			// A failure, such as a missing right, must not delay every call that works without.
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

// lockedOut returns the error of all calls if the server refuses the password; nil otherwise.
func (n *node) lockedOut() error {
	if err := n.refusal.Load(); err != nil {
		return *err
	}
	return nil
}

// reloadEvery is the pause after a failed attempt to load the scripts.
const reloadEvery = time.Second

// loadOn loads the scripts on one server in one round trip, after a PING that checks the password.
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

// onceCmd is a command that the client never retries by itself, since the store does. The client
// would retry until the deadline if a server refuses because it is a replica or paused.
type onceCmd struct{ *redis.Cmd }

func (onceCmd) NoRetry() bool { return true }

// eval runs a script on the node of the call. It is retried, while there is time, if it has not run
// for a reason that may soon be gone; unless once, also if the connection broke.
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
	if isReply(err) { // with an error reply, the outcome is known
		sent.settle(before)
	}
	return reply, err
}

// The commands that run a script, as interface values: converting a string would allocate each
// time.
var byHash, byText any = "evalsha", "eval"

func newEval(ctx context.Context, command any, script []byte, keys []string, args []any) *redis.Cmd {
	e := new(struct { // one allocation instead of two
		wired
		few [24]any
	})
	e.wired = wired{script, wireOf(ctx)}
	return newEvalIn(ctx, e.few[:0], command, &e.wired, keys, args)
}

// newEvalOf is newEval with a given script argument.
func newEvalOf(ctx context.Context, command any, script encoding.BinaryMarshaler, keys []string, args []any) *redis.Cmd {
	return newEvalIn(ctx, make([]any, 0, 3+len(keys)+len(args)), command, script, keys, args)
}

func newEvalIn(ctx context.Context, all []any, command any, script encoding.BinaryMarshaler, keys []string, args []any) *redis.Cmd {
	all = append(all, command, script, len(keys))
	for i := range keys {
		all = append(all, &keys[i]) // converting a string to an interface allocates, converting a pointer does not
	}
	return redis.NewCmd(ctx, append(all, args...)...)
}

// scriptCall is one run of a script.
type scriptCall struct {
	script *script
	keys   []string
	args   []any
}

// evaluated is the result of a scriptCall.
type evaluated struct {
	reply any
	err   error
	// open is set if the script may have run.
	open bool
}

// evalEach runs scripts in one pipeline, and retries failed ones in further pipelines: see eval.
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

// evalPipelined runs scripts in one pipeline, and those that the server does not have in a second
// one.
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
	known := make(map[*script]bool) // the server has the text, which is sent first
	for i, e := range s.pipeline(ctx, again, func(i int) (any, []byte) {
		if src := again[i].script.in(s); known[again[i].script] {
			return byHash, src.sha
		} else {
			known[again[i].script] = true
			return byText, src.text
		}
	}) {
		if isNoScript(e.err) || isNoShebang(e.err) { // several servers, or an old one
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

// pipeline sends scripts, each by its hash or its text.
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

// wiredEach is a wired argument that also counts its own writes.
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
