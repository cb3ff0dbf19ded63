package script

import (
	"context"
	"crypto/sha1" //nolint:gosec // the server names scripts so
	"embed"
	"encoding/hex"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// Script is a Lua script in two forms. The modern form starts with a line that declares its flags,
// which Redis supports from version 7 on. The plain form does not have that line. If the first line
// of a script is a comment, it has no flags in both forms.
type Script struct{ modern, plain source }

type source struct{ text, sha []byte }

// anyRoom precedes the plain form of scripts that may write even if the server's memory is full.
// Before version 7 Redis then refuses only the first write of a script, and only if it needs
// memory. This command needs none, and changes nothing.
const anyRoom = "redis.pcall('HDEL', KEYS[1], '')"

// NewScript returns the script of a text whose first line declares its flags.
func NewScript(text string) *Script {
	flags, rest, _ := strings.Cut(text, "\n")
	plain := "\n" + rest
	if strings.Contains(flags, "allow-oom") {
		plain = anyRoom + plain
	}
	return &Script{newSource(text), newSource(plain)} // the line numbers stay
}

func newSource(text string) source {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // the server names scripts so
	return source{[]byte(text), hex.AppendEncode(nil, sum[:])}
}

// Text returns the text of the file scripts/NAME.lua. A line "--#include a b" stands for
// scripts/lib/a.lua and scripts/lib/b.lua; the lines after it use their locals.
func Text(files embed.FS, name string) string {
	file, err := files.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err)
	}
	return includeLine.ReplaceAllStringFunc(string(file), func(line string) string {
		var libraries strings.Builder
		for _, name := range strings.Fields(line)[1:] {
			libraries.WriteString(Text(files, "lib/"+name))
		}
		return libraries.String()
	})
}

var includeLine = regexp.MustCompile(`(?m)^--#include( \w+)+$`)

// in returns the form that the servers support, as far as it is known.
func (s *Script) in(c *Client) *source {
	if c.plainScripts.Load() {
		return &s.plain
	}
	return &s.modern
}

// reloadEvery is the pause after a failed attempt to load the scripts.
const reloadEvery = time.Second

// load loads all scripts on the node before the first one is used, so that calls normally do not
// see NOSCRIPT. It is best effort: eval falls back to sending the text.
//
// It returns an error if the server refuses the client's password, or requires one. Otherwise a
// long command of an unauthenticated client would end its connection without a reply that says why.
// Loading is retried a second later.
//
// Loading continues when its caller's context ends, so that a distant server eventually has the
// scripts.
func (n *Node) load(ctx context.Context) error {
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
		owner := n.owner
		c := owner.deadlines.context(owner.life, n, owner.unhurried(), owner.unhurried())
		defer owner.deadlines.release(c)
		err := n.eachServer(c, owner.loadOn)
		if redisfault.IsUnauthenticated(err) {
			n.refusal.Store(&err)
		} else {
			n.refusal.Store(nil)
		}
		if err != nil {
			// A failure, such as a missing right, must not delay every call that works without
			// loading.
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
func (n *Node) lockedOut() error {
	if err := n.refusal.Load(); err != nil {
		return *err
	}
	return nil
}

// loadOn loads the scripts on one server in one round trip, after a PING that checks the password.
func (c *Client) loadOn(ctx context.Context, server *redis.Client) error {
	if err := server.Ping(ctx).Err(); redisfault.IsUnauthenticated(err) {
		return err
	}
	for {
		plain := c.plainScripts.Load()
		_, err := server.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, script := range c.config.Scripts {
				pipe.ScriptLoad(ctx, string(script.in(c).text))
			}
			return nil
		})
		if !isNoShebang(err) || plain {
			return err
		}
		c.plainScripts.Store(true)
	}
}
