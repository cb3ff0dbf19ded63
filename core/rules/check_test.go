package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// full has every field.
const full = `
version: 3                     # for people
mode: enforce
limits:
  api:
    limit: 100/1m burst=20
    candidate: 60/1m burst=20
    overrides:
      - { keys: [team-7, "partner-*", 0123, true], limit: 1000/1m, comment: contract 2026-11 }
      - keys:
        - big
        - bigger-*
        limits: [10/1s, 2000/1m name=minute]
  signup: { mode: shadow, limit: 5/1h }
  chat:
    enforce: 10%
    limits: [60/1m name=requests, 90000/1m name=tokens]
    candidate: [30/1m name=requests, 90000/1m name=tokens]
semaphores:
  reports: { capacity: 4, overrides: [{ keys: [big], capacity: 8, comment: 2 }] }
  gate: { min: 50, max: 1000, target: 200ms, tiers: { normal: 90%, low: 70%, background: 0.5% }, mode: off }
`

// bad is a table of documents that are refused, each with its errors: the place, and a part of the
// text. Documents that schema.json refuses, too, are marked.
var bad = []struct {
	name, text string
	schema     bool
	errors     []string
}{
	{"nothing", "", true, []string{"1:1: it is empty"}},
	{"a comment alone", "# rules\n", true, []string{"1:1: it is empty"}},
	{"a document's begin alone", "---\n", true, []string{"1:1: it is empty"}},
	{"null", "~", true, []string{"1:1: it is nothing; want a mapping"}},
	{"a text", "limits", true, []string{`1:1: it is "limits"; want a mapping`}},
	{"a list", "- api", true, []string{"1:1: it is a list; want a mapping"}},
	{"a field that is not known", "limit: 5/1m\nmode: off", true, []string{`1:1: the field "limit" is not known; want limits, mode, semaphores or version`}},
	{"several errors", "mode: on\nlimits:\n  api: { limit: 0/1m, limt: 2/1m }\nsemaphores:\n  x: { capacity: 0 }", true, []string{
		`1:7: mode: it is "on"; want one of enforce, shadow or off`, "3:17: limits.api.limit: 0/1m: the count", `3:23: limits.api: the field "limt" is not known`,
		`5:18: semaphores.x.capacity: it is "0"; want a whole number from 1 to`,
	}},
	{"a syntax error", "limits: [", false, []string{"1:9: sequence end token ']' not found"}},
	{"tabs", "limits:\n\tapi: { limit: 5/1m }", false, []string{"2:1: found character"}},
	{"a NUL", "mode: off # \x00", false, []string{"1:13: a NUL"}},
	{"a NUL behind a character of two bytes", "mode: off\n#é\x00", false, []string{"2:3: a NUL"}},
	{"not UTF-8", "mode: off\n# caf\xe9 au lait", false, []string{"2:6: this is not UTF-8"}},
	{"UTF-16", "\xff\xfem\x00", true, []string{"1:4: a NUL"}},
	{"1 MiB", "mode: off\n" + strings.Repeat("#\n", 1<<19), false, []string{"1:1: it has 1048586 bytes, at most 1044480"}},
	{"two documents", "mode: off\n---\nmode: shadow", false, []string{"2:1: a second document"}},
	{"a document behind an end", "mode: off\n...\nmode: shadow", false, []string{"3:5: a second document"}},
	{"an anchor and an alias", "limits:\n  a: &a { limit: 5/1m }\n  b: *a", false, []string{"2:6: anchors", "3:6: aliases"}},
	{"a billion", "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]", true, []string{"1:4: anchors", "2:4: anchors", "2:8: aliases", "2:11: aliases", "3:4: anchors", "3:8: aliases", "3:11: aliases"}},
	{"a merge key", "limits:\n  <<: { a: { limit: 5/1m } }", false, []string{"2:3: merge keys"}},
	{"a tag", "mode: !!str off", false, []string{"1:7: tags"}},
	{"a key with a question mark", "? mode\n: off", false, []string{"1:1: keys with a question mark"}},
	{"a directive", "%YAML 1.2\n---\nmode: off", false, []string{"1:1: directives"}},
	{"a key that is a list", "limits:\n  [a]: 1", false, []string{"2:"}},
	{"13 lists", "limits: " + strings.Repeat("[", 20) + strings.Repeat("]", 20), true, []string{"1:20: more than 12 mappings and sequences"}},
	{"2,049 keys", "limits:\n" + strings.Repeat("  a: { limit: 5/1m }\n", 2049), false, []string{"2050:4: more than 2048 keys"}},
	{"1,025 missing values", "limits:\n" + strings.Repeat("  a: { b, }\n", 1025), true, []string{"more than 1024 keys without a value"}},
	{"a section twice", "limits: {}\nlimits: {}", false, []string{"2:1: limits: it is given twice, first in line 1"}},
	{"a name twice", "limits:\n  a: { limit: 5/1m }\n  b: { limit: 5/1m }\n  a: { limit: 6/1m }", false, []string{"4:3: limits.a: it is given twice, first in line 2"}},
	{"a field twice", "limits: { a: { limit: 5/1m, limit: 6/1m } }", false, []string{"1:29: limits.a.limit: it is given twice, first in line 1"}},
	{"a section without a value", "limits:\nsemaphores: {}\n", true, []string{"1:1: limits: it has no value"}},
	{"a file that ends too early", "limits:\n  a:\n    limit: 5/1m\n  b:\n", true, []string{"4:3: limits.b: it has no value"}},
	{"a file that ends in a text", "limits:\n  a: { limit: \"5/1", false, []string{"2:15: "}},
	{"names that no mechanism can have", "limits: { ' a': { limit: 5/1m }, é: { limit: 5/1m }, '': { limit: 5/1m } }", true, []string{
		`1:11: limits." a": no mechanism has this name`, "1:34: limits.é: no mechanism has this name", "1:54: limits.: no mechanism has this name",
	}},
	{"a rule that is no mapping", "limits: { a: 5/1m, b: [5/1m] }", true, []string{`1:14: limits.a: it is "5/1m"; want a mapping`, "1:23: limits.b: it is a list"}},
	{"a limit that is none", "limits: { a: { limit: 5 }, b: { limit: five/1m }, c: { limit: 5/1x }, d: { limit: 5/1m brust=2 }, e: { limit: {} } }", true, []string{
		"1:23: limits.a.limit: ", "1:40: limits.b.limit: ", "1:63: limits.c.limit: ", "1:83: limits.d.limit: ", "1:111: limits.e.limit: it is a mapping; want a limit such as",
	}},
	{"a limit above 10⁹ a second", "limits: { a: { limit: 1000000001/1s }, b: { limits: [2000/1us] }, c: { limit: 1000000000/1s } }", false, []string{
		"1:23: limits.a.limit: 1000000001/1s is more than 1000000000 a second", "1:54: limits.b.limits[0]: 2000/1µs is more than",
	}},
	{"a negative limit", "limits: { a: { limit: -5/1m } }", true, []string{"1:23: limits.a.limit: "}},
	{"17 limits", "limits: { a: { limits: [" + manyLimits(17) + "] } }", true, []string{"limits.a.limits[16]: more than 16 limits"}},
	{"no limits", "limits: { a: { limits: [] } }", true, []string{"1:24: limits.a.limits: the list is empty"}},
	{"two limits of one period", "limits: { a: { limits: [5/1m, 6/60s] } }", false, []string{`1:31: limits.a.limits[1]: two limits are called "1m"`}},
	{"two limits of one name", "limits: { a: { limits: [5/1m name=x, 6/60s name=x] } }", false, []string{`1:38: limits.a.limits[1]: two limits are called "x"`}},
	{"limit and limits", "limits: { a: { limit: 5/1m, limits: [5/1m] } }", true, []string{"1:29: limits.a.limits: it cannot stand beside limit"}},
	{"a limit that is a list", "limits: { a: { limit: [5/1m] } }", true, []string{"1:23: limits.a.limit: it is a list; want a limit"}},
	{"limits that are no list", "limits: { a: { limits: 5/1m } }", true, []string{`1:24: limits.a.limits: it is "5/1m"; want a list of limits`}},
	{"an unknown mode", "mode: disabled\nlimits: { a: { mode: true } }", true, []string{`1:7: mode: it is "disabled"; want one of`, `2:22: limits.a.mode: it is "true"`}},
	{"enforce: 110%", "limits: { a: { enforce: 110% } }", true, []string{`1:25: limits.a.enforce: it is "110%"; want more than 0% and at most 100%`}},
	{"shares that are none", "limits: { a: { enforce: -5% }, b: { enforce: 0.1 }, c: { enforce: 0x1p1% }, d: { enforce: NaN% } }", true, []string{
		`1:25: limits.a.enforce: it is "-5%"`, `1:46: limits.b.enforce: it is "0.1"`, `1:67: limits.c.enforce: it is "0x1p1%"`, `1:91: limits.d.enforce: it is "NaN%"`,
	}},
	{"a share of nothing", "limits: { a: { enforce: 0% } }", false, []string{`1:25: limits.a.enforce: it is "0%"`}},
	{"a share beside shadow", "limits: { a: { mode: shadow, enforce: 10% } }", true, []string{"1:30: limits.a.enforce: it has no effect beside mode: shadow"}},
	{"overrides without keys", "limits: { a: { overrides: [{ limit: 5/1m }, { keys: [], limit: 5/1m }] } }", true, []string{
		"1:28: limits.a.overrides[0]: it has no keys", "1:53: limits.a.overrides[1].keys: the list is empty",
	}},
	{"overrides without a limit", "limits: { a: { overrides: [{ keys: [k] }] } }", true, []string{"1:28: limits.a.overrides[0]: it has no limit or limits"}},
	{"overrides that are a mapping", "limits: { a: { overrides: { k: 5/1m } } }", true, []string{"1:27: limits.a.overrides: it is a mapping; want a list of overrides"}},
	{"no overrides", "limits: { a: { overrides: [] } }", true, []string{"1:27: limits.a.overrides: the list is empty"}},
	{"a key twice", "limits:\n  a:\n    overrides:\n      - { keys: [k, l, k], limit: 5/1m }\n      - { keys: [m, l], limit: 6/1m }", true, []string{
		`4:24: limits.a.overrides[0].keys[2]: the key "k" is given twice, first in line 4`, `5:21: limits.a.overrides[1].keys[1]: the key "l" is given twice, first in line 4`,
	}},
	{"two equal prefixes", "semaphores: { a: { overrides: [{ keys: [k*], capacity: 1 }, { keys: ['k*'], capacity: 2 }] } }", false, []string{`1:70: semaphores.a.overrides[1].keys[0]: the key "k*" is given twice`}},
	{"an asterisk alone", "limits: { a: { overrides: [{ keys: ['*'], limit: 5/1m }] } }", true, []string{"1:37: limits.a.overrides[0].keys[0]: an asterisk alone"}},
	{"keys that are none", "limits: { a: { overrides: [{ keys: ['', ~, {}, " + strings.Repeat("k", 1025) + "], limit: 5/1m }] } }", true, []string{
		"1:37: limits.a.overrides[0].keys[0]: key is empty", "1:41: limits.a.overrides[0].keys[1]: it is nothing; want a key",
		"1:44: limits.a.overrides[0].keys[2]: it is a mapping", "1:48: limits.a.overrides[0].keys[3]: key has 1025 bytes",
	}},
	{"prefixes of 17 lengths", "limits: { a: { overrides: [{ keys: [" + manyPrefixes(17) + "], limit: 5/1m }] } }", false, []string{"limits.a.overrides[0].keys[16]: prefixes of more than 16 lengths"}},
	{"a comment that is a list", "limits: { a: { overrides: [{ keys: [k], limit: 5/1m, comment: [x] }] } }", true, []string{"1:63: limits.a.overrides[0].comment: it is a list; want text"}},
	{"a candidate that is none", "limits: { a: { candidate: [] }, b: { candidate: 0/1m } }", true, []string{"1:27: limits.a.candidate: the list is empty", "1:49: limits.b.candidate: "}},
	{"capacities that are none", "semaphores: { a: { capacity: 1.5 }, b: { capacity: '4' }, c: { capacity: 0x10 }, d: { capacity: 99999999999999999999 }, e: { capacity: -1 }, f: { capacity: 012 } }", true, []string{
		`1:30: semaphores.a.capacity: it is "1.5"`, `1:52: semaphores.b.capacity: it is text, "4"`, `1:74: semaphores.c.capacity: it is "0x10"`,
		`1:97: semaphores.d.capacity: it is "99999999999999999999"`, `1:136: semaphores.e.capacity: it is "-1"`, `1:157: semaphores.f.capacity: it is "012"`,
	}},
	{"a semaphore in shadow", "semaphores: { a: { mode: shadow } }", true, []string{`1:26: semaphores.a.mode: it is "shadow"; want one of enforce or off`}},
	{"a limit of a semaphore", "semaphores: { a: { limit: 5/1m } }", true, []string{`1:20: semaphores.a: the field "limit" is not known; want capacity, max, min,`}},
	{"a tier that is none", "semaphores: { a: { tiers: { critical: 10%, normal: 90%, low: 101%, background: 1% } } }", true, []string{
		`1:29: semaphores.a.tiers: the field "critical" is not known; want background, low or normal`, `1:62: semaphores.a.tiers.low: it is "101%"`,
	}},
	{"tiers in part", "semaphores: { a: { tiers: { low: 70%, background: 50% } }, b: { tiers: 90% } }", true, []string{
		"1:20: semaphores.a.tiers: it has no normal: all three", `1:72: semaphores.b.tiers: it is "90%"; want a mapping`,
	}},
	{"a lower tier that has more", "semaphores: { a: { tiers: { background: 80%, low: 70%, normal: 60% } } }", false, []string{
		"1:29: semaphores.a.tiers.background: it is more than that of low", "1:46: semaphores.a.tiers.low: it is more than that of normal",
	}},
	{"tiers without their semaphore", "tiers: { low: 70% }\nsemaphores: { tiers: { low: 70% } }", true, []string{`1:1: the field "tiers" is not known`, `2:24: semaphores.tiers: the field "low" is not known`}},
	{"tiers of a limiter", "limits: { a: { tiers: { low: 70% } } }", true, []string{`1:16: limits.a: the field "tiers" is not known`}},
	{"max below min", "semaphores: { a: { min: 10, max: 9, target: 1s } }", false, []string{"1:20: semaphores.a.min: it is 10, more than max, which is 9"}},
	{"an adaptive capacity in part", "semaphores: { a: { min: 10 }, b: { max: 10, target: 1s } }", true, []string{"1:15: semaphores.a: min without max", "1:31: semaphores.b: max without min"}},
	{"an adaptive capacity beside a fixed one", "semaphores: { a: { min: 1, max: 9, target: 1s, capacity: 5, overrides: [{ keys: [k], capacity: 6 }] } }", true, []string{
		"1:48: semaphores.a.capacity: it cannot stand beside min", "1:61: semaphores.a.overrides: it cannot stand beside min",
	}},
	{"targets that are none", "semaphores: { a: { min: 1, max: 9, target: 200 }, b: { min: 1, max: 9, target: 0s }, c: { min: 1, max: 9, target: -1s }, d: { min: 1, max: 9, target: 2h } }", true, []string{
		`1:44: semaphores.a.target: it is "200"; want a time from 1ms to 1h0m0s`, `1:80: semaphores.b.target: it is "0s"`, `1:115: semaphores.c.target: it is "-1s"`, `1:151: semaphores.d.target: it is "2h"`,
	}},
	{"versions that are none", "version: [3]", true, []string{"1:10: version: it is a list; want a number or a short text"}},
	{"a long version", "version: " + strings.Repeat("3", 65), true, []string{`1:10: version: it is "333`}},
}

func manyLimits(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%d/1m name=n%d", i+1, i))
	}
	return strings.Join(all, ", ")
}

func manyPrefixes(n int) string {
	var all []string
	for i := range n {
		all = append(all, strings.Repeat("p", i+1)+"*")
	}
	return strings.Join(all, ", ")
}

// listOf returns the errors of a document, or fails the test.
func listOf(t testing.TB, err error) []Error {
	t.Helper()
	if err == nil {
		return nil
	}
	var all *Errors
	if !errors.As(err, &all) || len(all.List) == 0 {
		t.Fatalf("%T: %v", err, err)
	}
	return all.List
}

// Every error is in the answer, with its place, and no other is.
func TestBadDocuments(t *testing.T) {
	if len(bad) < 40 {
		t.Errorf("the table has %d rows", len(bad))
	}
	for _, c := range bad {
		t.Run(c.name, func(t *testing.T) {
			list := listOf(t, Check([]byte(c.text)))
			if len(list) != len(c.errors) {
				t.Errorf("%d errors, want %d", len(list), len(c.errors))
			}
			for i, e := range list {
				if i >= len(c.errors) || !strings.Contains(e.Error(), c.errors[i]) {
					t.Errorf("%s, want %v", &e, c.errors[min(i, len(c.errors)-1)])
				}
			}
		})
	}
}

// good documents are accepted.
var good = map[string]string{
	"every field": full, "nothing": "{}", "a begin and an end": "---\nmode: off\n...\n", "JSON": `{"limits": {"api": {"limit": "5/1m"}}, "mode": "off"}`,
	"a byte order mark": "\ufeffmode: off", "carriage returns": strings.ReplaceAll(full, "\n", "\r\n"), "no end of the last line": "mode: off",
	"no rules": "limits: {}\nsemaphores: {}", "a rule without a field": "limits: { a: {} }", "a mode alone": "limits: { a: { mode: off } }",
	"a text over several lines": "limits:\n  a:\n    limit: 5/1m\n      burst=2\n    overrides:\n    - keys: [k]\n      limit: >\n        5/1m\n      comment: |\n        two\n        lines\n",
	"one name of both kinds":    "limits: { a: { limit: 5/1m } }\nsemaphores: { a: { capacity: 5 } }", "16 limits": "limits: { a: { limits: [" + manyLimits(16) + "] } }",
	"prefixes of 16 lengths": "limits: { a: { overrides: [{ keys: [" + manyPrefixes(16) + "], limit: 5/1m }] } }",
	"2,048 names":            "limits: {" + manyNames(2048) + "}", "2,048 names below each other": "limits:\n  " + strings.ReplaceAll(manyNames(2048), ", ", "\n  "),
	"calendars": "limits: { a: { limits: [10000/month from=15 in=Europe/Berlin, 999999999999999/day] } }",
	"a version": "version: 2026-11-26", "a share of all": "limits: { a: { enforce: 100% }, b: { enforce: .5% }, c: { enforce: 99.99% } }",
}

func TestGoodDocuments(t *testing.T) {
	for name, text := range good {
		if err := Check([]byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func manyNames(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("n%d: { limit: 5/1m }", i))
	}
	return strings.Join(all, ", ")
}

// The fields end where they should.
func TestADocumentIsRead(t *testing.T) {
	d, err := read([]byte(full), nil)
	if err != nil {
		t.Fatal(err)
	}
	api, chat, signup := d.limits["api"], d.limits["chat"], d.limits["signup"]
	reports, gate := d.semaphores["reports"], d.semaphores["gate"]
	for _, c := range []struct{ got, want any }{
		{d.version + d.mode, "3enforce"},
		{api.plan, tokenbucket.PerMinute(100).Burst(20)},
		{api.candidate, tokenbucket.PerMinute(60).Burst(20)},
		{fmt.Sprint(api.overrides["team-7"], api.overrides["partner-*"], api.overrides["0123"], api.overrides["true"]), "1000/1m 1000/1m 1000/1m 1000/1m"},
		{fmt.Sprint(api.overrides["big"], api.overrides["bigger-*"], len(api.overrides)), "[10/1s 2000/1m name=minute] [10/1s 2000/1m name=minute] 6"},
		{api.where, where{5, 3, "limits.api"}},
		{signup.mode, "shadow"}, {chat.share, 0.1},
		{fmt.Sprint(chat.plan), "[60/1m name=requests 90000/1m name=tokens]"}, {fmt.Sprint(chat.candidate), "[30/1m name=requests 90000/1m name=tokens]"},
		{reports.capacity, 4}, {fmt.Sprint(reports.overrides), "map[big:8]"},
		{gate.target, 200 * time.Millisecond}, {gate.min, 50}, {gate.max, 1000}, {gate.mode, "off"}, {*gate.tiers, tiers{0.9, 0.7, 0.005}},
	} {
		if c.got != c.want {
			t.Errorf("%v, want %v", c.got, c.want)
		}
	}
}

func TestKnownNames(t *testing.T) {
	const text = "limits: { api: {}, gate: {}, other: {} }\nsemaphores: { api: {}, gate: {}, other: {} }"
	for _, c := range []struct {
		known []string
		want  []string
	}{
		{nil, nil},
		{[]string{"api", "gate", "other"}, nil},
		{[]string{"limits.api", "semaphores.api", "limits.gate", "semaphores.gate", "other"}, nil},
		{[]string{"limits.api", "semaphores.gate", "other"}, []string{
			"1:20: limits.gate: the mechanism of this name is of another kind: its rule stands under semaphores",
			"2:15: semaphores.api: the mechanism of this name is of another kind: its rule stands under limits",
		}},
		{[]string{"api", "gate", "limits.x"}, []string{"1:30: limits.other: no mechanism has this name", "2:34: semaphores.other: no mechanism has this name"}},
	} {
		var got []string
		for _, e := range listOf(t, Check([]byte(text), c.known...)) {
			got = append(got, e.Error())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %q, want %q", c.known, got, c.want)
		}
	}
}

// A large document is checked in a bounded time, whatever it consists of: in one that does not grow
// with the square of its size.
func TestHostileDocuments(t *testing.T) {
	if testing.Short() || testpace.Raced {
		t.Skip("it parses 20 MiB")
	}
	const slowest = 5 * time.Second // half a second on a machine that does nothing else; ten without bounds
	for _, unit := range []string{
		"[", "{", "]", "{a: ", "[{a},", "[a: b,", "{a,", "{a: b,", "- ", "-\n", "- a:\n", "- a:\n- b\n", "- - a\n", "- a: b\n", "a:\n", "a: b\n", "a:\n- b\n", "? a\n", "&a ", "*a ",
		"\"", "'", ",", "%\n", "`", "---\n", "---\na: b\n", "...\n", "a: b\n c: d\n", "a: |\n b\n", "\"a\": 1\n", ": ", "#\n", "\t", "\r", "\n", "é",
	} {
		text := []byte(strings.Repeat(unit, MaxDocument/4/len(unit)))
		for _, head := range []string{"", "["} {
			began := time.Now()
			_ = Check(append([]byte(head), text[:len(text)-1]...))
			if took := time.Since(began); took > slowest {
				t.Errorf("%s%q again and again takes %v", head, unit, took)
			}
		}
	}
}
