package redisfault

import (
	"errors"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// reply is an error that a server replies.
type reply string

func (r reply) Error() string { return string(r) }

func (reply) RedisError() {}

func TestFind(t *testing.T) {
	for text, want := range map[string]string{
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.":                                  "MISCONF",
		"ERR Error running script (call to f_1): @user_script:61: @user_script: 61: -READONLY You can't write against a read only replica.": "READONLY",
		"ERR NOAUTH Authentication required.":            "NOAUTH", // as proxies spell it
		"BUSY Redis is busy running a script.":           "BUSY",
		"BUSYKEY Target key name already exists.":        "",
		"ERR max number of clients reached":              "ERR max number of clients",
		"ERR ACL failure in script: no permissions":      "NOPERM",
		"ERR value is not an integer or out of range":    "",
		"NOREPLICAS Not enough good replicas to write.":  "NOREPLICAS",
		"DENIED Redis is running in protected mode":      "DENIED",
		"CLUSTERDOWN Hash slot not served":               "CLUSTERDOWN",
		"OOM command not allowed when used memory > 'x'": "OOM",
	} {
		if r, ok := Find(reply(text)); r.Reply != want || ok != (want != "") {
			t.Errorf("%q is %q, want %q", text, r.Reply, want)
		}
	}
	for _, err := range []error{nil, errors.New("READONLY, says nobody")} {
		if r, ok := Find(err); ok {
			t.Errorf("%v is %v", err, r)
		}
	}
}

// Each refusal says what to do, unless it concerns one step, and its error has its cause.
func TestEachRefusalIsComplete(t *testing.T) {
	for _, r := range refusals {
		err := Explain(reply(r.Reply+" and so on"), false, false)
		if store.CauseOf(err) != r.Cause || !slices.Contains(store.Causes, r.Cause) || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: the cause is %q", r.Reply, store.CauseOf(err))
		}
		if store.Down(err) != (r.Verdict != Misconfiguration && r.Verdict != Full) {
			t.Errorf("%s: an outage: %v", r.Reply, store.Down(err))
		}
		if (r.Is == "" || r.Remedy == "") && r.Verdict < Elsewhere {
			t.Errorf("%s: nothing says what to do", r.Reply)
		}
	}
}
