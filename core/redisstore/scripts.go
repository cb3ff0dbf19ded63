package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // the server names scripts so
	_ "embed"
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Each script is one atomic step; its file says what its keys and arguments are.
var (
	//go:embed scripts/take_tokens.lua
	takeTokensSource string
	//go:embed scripts/begin_operation.lua
	beginOperationSource string
	//go:embed scripts/settle_operation.lua
	settleOperationSource string
	//go:embed scripts/abandon_operation.lua
	abandonOperationSource string
	//go:embed scripts/mark_operation.lua
	markOperationSource string
	//go:embed scripts/renew_operation.lua
	renewOperationSource string

	takeTokens       = newScript(takeTokensSource)
	beginOperation   = newScript(beginOperationSource)
	settleOperation  = newScript(settleOperationSource)
	abandonOperation = newScript(abandonOperationSource)
	markOperation    = newScript(markOperationSource)
	renewOperation   = newScript(renewOperationSource)
	// settleSmall is settleOperation for what must be written though the server's memory is full.
	settleSmall = newScript(strings.Replace(settleOperationSource, "#!lua", "#!lua flags=allow-oom", 1))

	allScripts = []*script{
		takeTokens, beginOperation, settleOperation, settleSmall, abandonOperation, markOperation, renewOperation,
	}
)

// script is a Lua script in two forms. The modern one starts with a line that declares its flags,
// which Redis understands from version 7 on; the plain one lacks it.
type script struct{ modern, plain source }

type source struct{ text, sha string }

func newScript(text string) *script {
	_, rest, _ := strings.Cut(text, "\n")
	return &script{newSource(text), newSource("\n" + rest)} // the line numbers stay
}

func newSource(text string) source {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // the server names scripts so
	return source{text, hex.EncodeToString(sum[:])}
}

// in returns the form that the server understands, as far as is known.
func (s *script) in(st *Store) source {
	if st.plainScripts.Load() {
		return s.plain
	}
	return s.modern
}

// load puts every script on the server before the first one is used, so that no call sees NOSCRIPT
// in normal running. It is best effort: call falls back to sending the text.
func (s *Store) load(ctx context.Context) {
	if s.loaded.Load() || !s.loading.TryLock() {
		return
	}
	defer s.loading.Unlock()
	for _, script := range allScripts {
		err := s.client.ScriptLoad(ctx, script.in(s).text).Err()
		if isNoShebang(err) {
			s.plainScripts.Store(true)
			err = s.client.ScriptLoad(ctx, script.plain.text).Err()
		}
		if err != nil {
			return // the next call tries again
		}
	}
	s.loaded.Store(true)
}

// onceCmd is a command that the client never sends again by itself.
type onceCmd struct{ *redis.Cmd }

func (onceCmd) NoRetry() bool { return true }

// eval runs a script. If once, the client does not re-send it when a reply is lost.
func (s *Store) eval(ctx context.Context, once bool, sc *script, keys []string, args ...any) (any, error) {
	s.load(ctx)
	src := sc.in(s)
	reply, err := s.process(ctx, once, "evalsha", src.sha, keys, args)
	if isNoScript(err) {
		s.loaded.Store(false)
		reply, err = s.process(ctx, once, "eval", src.text, keys, args)
	}
	if isNoShebang(err) && src == sc.modern {
		s.plainScripts.Store(true)
		reply, err = s.process(ctx, once, "eval", sc.plain.text, keys, args)
	}
	return reply, err
}

func (s *Store) process(ctx context.Context, once bool, name, script string, keys []string, args []any) (any, error) {
	cmd := newEval(ctx, name, script, keys, args)
	if once {
		_ = s.client.Process(ctx, onceCmd{cmd})
	} else {
		_ = s.client.Process(ctx, cmd)
	}
	return cmd.Result()
}

func newEval(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, name, script, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	return redis.NewCmd(ctx, append(all, args...)...)
}

// evalEach runs a script once for each list of keys and arguments, in one pipeline. Errors of
// single calls are in the commands.
func (s *Store) evalEach(ctx context.Context, sc *script, keys [][]string, args [][]any) ([]*redis.Cmd, error) {
	s.load(ctx)
	src := sc.in(s)
	cmds := make([]*redis.Cmd, len(keys))
	pipe := s.client.Pipeline()
	for i := range keys {
		cmds[i] = newEval(ctx, "evalsha", src.sha, keys[i], args[i])
		_ = pipe.Process(ctx, cmds[i])
	}
	_, err := pipe.Exec(ctx)
	for i, cmd := range cmds { // a pipeline has no second try of its own
		if isNoScript(cmd.Err()) || isNoShebang(cmd.Err()) {
			v, evalErr := s.eval(ctx, false, sc, keys[i], args[i]...)
			cmd.SetVal(v)
			cmd.SetErr(evalErr)
			err = nil
		}
	}
	for _, cmd := range cmds {
		if err == nil && cmd.Err() != nil {
			err = cmd.Err()
		}
	}
	return cmds, err
}
