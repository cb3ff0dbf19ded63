package rules

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/keymatch"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// The kinds of mechanisms that have rules: the names of their fields in a document.
const (
	limits     = "limits"
	semaphores = "semaphores"
)

// The modes of a rule, and of a document. Empty is not given.
const (
	modeEnforce = "enforce"
	modeShadow  = "shadow"
	modeOff     = "off"
)

const (
	// maxLimits is how many limits a key has at most, and maxRate how many tokens a second come
	// back at most.
	maxLimits, maxRate = 16, 1_000_000_000
	// maxVersion bounds the version that a document gives itself, in bytes.
	maxVersion = 64
	// leastTarget and mostTarget bound the slowest acceptable answer.
	leastTarget, mostTarget = time.Millisecond, time.Hour
)

// document is a document that has no error, compiled as far as it can be without mechanisms.
type document struct {
	version, mode string
	limits        map[string]*limitRule
	semaphores    map[string]*semaphoreRule
}

// limitRule is what a document says of a limiter. Nil and zero are not given.
type limitRule struct {
	where
	mode      string
	share     float64 // of the keys that are enforced
	plan      tokenbucket.Plan
	candidate tokenbucket.Plan
	overrides map[string]tokenbucket.Plan
}

// semaphoreRule is what a document says of a semaphore. Nil and zero are not given.
type semaphoreRule struct {
	where
	mode      string
	capacity  int
	overrides map[string]int
	target    time.Duration // with min and max
	min, max  int
	tiers     *tiers
}

// tiers are the parts of a capacity. Zero is not given.
type tiers struct{ normal, low, background float64 }

// where is the place of a rule.
type where struct {
	line, column int
	path         string
}

// names are the mechanisms that a document may name, by the field of their kind. Those of the empty
// one are of any kind. Nil is any name.
type names map[string]map[string]bool

// knownNames returns names of a list such as limits.api, semaphores.gate, or api for either.
func knownNames(list []string) names {
	n := make(names)
	for _, name := range list {
		kind, rest, found := strings.Cut(name, ".")
		if !found || kind != limits && kind != semaphores {
			kind, rest = "", name
		}
		n.add(kind, rest)
	}
	return n
}

func (n names) add(kind, name string) {
	if n[kind] == nil {
		n[kind] = make(map[string]bool)
	}
	n[kind][name] = true
}

// Check returns an *[Errors] with all errors of a document, or nil: [Open] and [Rules.Reload]
// accept a document that Check accepts, unless a mechanism has no such rule (a capacity of its own
// beside an adaptive one).
//
// If known names are given, a rule for another name is an error, too. A name is the path of its
// rule, such as limits.api and semaphores.gate, or a bare one for either kind.
func Check(document []byte, known ...string) error {
	var may names
	if len(known) > 0 {
		may = knownNames(known)
	}
	_, err := read(document, may)
	return err
}

// read returns the document that a text is. The error is an *Errors.
func read(text []byte, known names) (*document, error) {
	root, err := parse(text)
	if err != nil {
		return nil, err
	}
	r := reader{known: known, texts: make(map[string]parsedLimit)}
	d := &document{limits: make(map[string]*limitRule), semaphores: make(map[string]*semaphoreRule)}
	r.fields(root, "", "a mapping with "+orList([]string{"version", "mode", limits, semaphores}), r.documentFields(d))
	if err := errorsOf(r.list); err != nil {
		return nil, err
	}
	return d, nil
}

// reader is a walker for one document.
type reader struct {
	walker
	known names
	texts map[string]parsedLimit // overrides repeat the same few limits
}

type parsedLimit struct {
	limit tokenbucket.Limit
	err   error
}

func (r *reader) documentFields(d *document) fields {
	return fields{
		"version": func(e entry) { d.version = r.version(e) },
		"mode":    func(e entry) { d.mode = r.oneOf(e, modeEnforce, modeShadow, modeOff) },
		limits: func(e entry) {
			r.rules(e, limits, func(e entry) { d.limits[e.key] = r.limitRule(e) })
		},
		semaphores: func(e entry) {
			r.rules(e, semaphores, func(e entry) { d.semaphores[e.key] = r.semaphoreRule(e) })
		},
	}
}

func (r *reader) version(e entry) string {
	text, ok := r.text(e.value, e.path, "a number or a short text")
	if ok && (len(text) > maxVersion || naming.CheckName(text) != nil) {
		r.fail(e.value, e.path, "it is %s; want 1 to %d printable characters of ASCII", quote(text), maxVersion)
	}
	return text
}

// rules walks the rules of a kind.
func (r *reader) rules(e entry, kind string, f func(entry)) {
	r.entries(e.value, e.path, "a mapping of names", func(e entry) {
		if err := naming.CheckName(e.key); err != nil {
			r.fail(e.node, e.path, "no mechanism has this name: %v", err)
			return
		}
		r.checkKnown(e, kind)
		f(e)
	})
}

func (r *reader) checkKnown(e entry, kind string) {
	other := map[string]string{limits: semaphores, semaphores: limits}[kind]
	switch {
	case r.known == nil, r.known[kind][e.key], r.known[""][e.key]:
	case r.known[other][e.key]:
		r.fail(e.node, e.path, "the mechanism of this name is of another kind: its rule stands under %s", other)
	default:
		r.fail(e.node, e.path, "no mechanism has this name")
	}
}

func (e *entry) where() where { return where{e.line, e.column, e.path} }

func (r *reader) limitRule(e entry) *limitRule {
	rule := &limitRule{where: e.where()}
	given := r.fields(e.value, e.path, "a mapping with the rule of a limiter", r.limitFields(rule))
	r.oneAtMost(e, given, "limit", "limits")
	if node := given["enforce"]; node != nil && (rule.mode == modeShadow || rule.mode == modeOff) {
		r.fail(node, e.path+".enforce", "it has no effect beside mode: %s", rule.mode)
	}
	return rule
}

func (r *reader) limitFields(rule *limitRule) fields {
	return fields{
		"limit":     func(e entry) { rule.plan = r.limit(e.value, e.path) },
		"limits":    func(e entry) { rule.plan = r.limits(e.value, e.path) },
		"candidate": func(e entry) { rule.candidate = r.plan(e.value, e.path) },
		"mode":      func(e entry) { rule.mode = r.oneOf(e, modeEnforce, modeShadow, modeOff) },
		"enforce":   func(e entry) { rule.share = r.share(e) },
		"overrides": func(e entry) {
			rule.overrides = make(map[string]tokenbucket.Plan)
			o := overrides{reader: r, taken: make(map[string]int), lengths: make(map[int]bool)}
			o.walk(e, "limit or limits", func(e entry) (fields, func()) {
				item := &limitItem{}
				return r.limitItemFields(&o, item), func() {
					for _, key := range o.keys {
						rule.overrides[key] = item.plan
					}
				}
			}, "limit", "limits")
		},
	}
}

// limitItem is an item of the overrides of a limiter.
type limitItem struct{ plan tokenbucket.Plan }

func (r *reader) limitItemFields(o *overrides, item *limitItem) fields {
	return fields{
		"keys":    o.readKeys,
		"comment": r.comment,
		"limit":   func(e entry) { item.plan = r.limit(e.value, e.path) },
		"limits":  func(e entry) { item.plan = r.limits(e.value, e.path) },
	}
}

func (r *reader) semaphoreRule(e entry) *semaphoreRule {
	rule := &semaphoreRule{where: e.where()}
	given := r.fields(e.value, e.path, "a mapping with the rule of a semaphore", r.semaphoreFields(rule))
	adaptive := []string{"min", "max", "target"}
	var has, lacks []string
	for _, f := range adaptive {
		if given[f] != nil {
			has = append(has, f)
		} else {
			lacks = append(lacks, f)
		}
	}
	if len(has) == 0 {
		return rule
	}
	if len(lacks) > 0 {
		r.fail(e.node, e.path, "%s without %s: an adaptive capacity has all three", has[0], lacks[0])
	}
	for _, f := range []string{"capacity", "overrides"} {
		if node := given[f]; node != nil {
			r.fail(node, e.path+"."+f, "it cannot stand beside %s: the capacity is fixed or adaptive", has[0])
		}
	}
	if rule.min > rule.max && rule.max > 0 {
		r.fail(given["min"], e.path+".min", "it is %d, more than max, which is %d", rule.min, rule.max)
	}
	return rule
}

func (r *reader) semaphoreFields(rule *semaphoreRule) fields {
	return fields{
		"capacity": func(e entry) { rule.capacity = r.capacity(e) },
		"min":      func(e entry) { rule.min = r.capacity(e) },
		"max":      func(e entry) { rule.max = r.capacity(e) },
		"target":   func(e entry) { rule.target = r.duration(e) },
		"mode":     func(e entry) { rule.mode = r.oneOf(e, modeEnforce, modeOff) },
		"tiers": func(e entry) {
			rule.tiers = &tiers{}
			given := r.fields(e.value, e.path, "a mapping with normal, low and background", r.tierFields(rule.tiers))
			r.checkTiers(e, given, rule.tiers)
		},
		"overrides": func(e entry) {
			rule.overrides = make(map[string]int)
			o := overrides{reader: r, taken: make(map[string]int), lengths: make(map[int]bool)}
			o.walk(e, "capacity", func(entry) (fields, func()) {
				item := &semaphoreItem{}
				return r.semaphoreItemFields(&o, item), func() {
					for _, key := range o.keys {
						rule.overrides[key] = item.capacity
					}
				}
			}, "capacity")
		},
	}
}

// semaphoreItem is an item of the overrides of a semaphore.
type semaphoreItem struct{ capacity int }

func (r *reader) semaphoreItemFields(o *overrides, item *semaphoreItem) fields {
	return fields{
		"keys":     o.readKeys,
		"comment":  r.comment,
		"capacity": func(e entry) { item.capacity = r.capacity(e) },
	}
}

func (r *reader) tierFields(t *tiers) fields {
	return fields{
		"normal":     func(e entry) { t.normal = r.share(e) },
		"low":        func(e entry) { t.low = r.share(e) },
		"background": func(e entry) { t.background = r.share(e) },
	}
}

// checkTiers refuses tiers of which one is missing, since it would have what another document or
// the program gave it, or of which one may use more than the tier above.
func (r *reader) checkTiers(e entry, given map[string]ast.Node, t *tiers) {
	if given == nil {
		return
	}
	above, most := "", 1.0
	for _, tier := range []struct {
		name  string
		share float64
	}{{"normal", t.normal}, {"low", t.low}, {"background", t.background}} {
		switch {
		case given[tier.name] == nil:
			r.fail(e.node, e.path, "it has no %s: all three tiers are given together", tier.name)
		case tier.share > most:
			r.fail(given[tier.name], e.path+"."+tier.name, "it is more than that of %s, the tier above", above)
		}
		if tier.share > 0 {
			above, most = tier.name, tier.share
		}
	}
}

func (r *reader) comment(e entry) { r.text(e.value, e.path, "text") }

func (r *reader) duration(e entry) time.Duration {
	text, ok := r.text(e.value, e.path, "a time such as 200ms")
	d, err := time.ParseDuration(text)
	if ok && (err != nil || d < leastTarget || d > mostTarget) {
		r.fail(e.value, e.path, "it is %s; want a time from %v to %v, such as 200ms", quote(text), leastTarget, mostTarget)
	}
	return d
}

// oneAtMost records an error if a mapping has several of these fields.
func (r *reader) oneAtMost(e entry, given map[string]ast.Node, names ...string) (found int) {
	for _, name := range names {
		if given[name] == nil {
			continue
		}
		if found++; found > 1 {
			r.fail(given[name], e.path+"."+name, "it cannot stand beside %s", names[0])
		}
	}
	return found
}

// plan returns a limit, or a list of them.
func (r *reader) plan(n ast.Node, path string) tokenbucket.Plan {
	if _, ok := n.(*ast.SequenceNode); ok {
		return r.limits(n, path)
	}
	return r.limit(n, path)
}

const wantLimit = "a limit such as 100/1m burst=20"

// limit returns a plan of one limit, or nil for a wrong one.
func (r *reader) limit(n ast.Node, path string) tokenbucket.Plan {
	if l, ok := r.parseLimit(n, path); ok {
		return l
	}
	return nil
}

func (r *reader) parseLimit(n ast.Node, path string) (l tokenbucket.Limit, ok bool) {
	text, ok := r.text(n, path, wantLimit)
	if !ok {
		return l, false
	}
	p, ok := r.texts[text]
	if !ok {
		p.limit, p.err = tokenbucket.ParseLimit(text)
		if p.err == nil {
			p.err = checkRate(p.limit)
		}
		r.texts[text] = p
	}
	if p.err != nil {
		problem := strings.TrimPrefix(p.err.Error(), tokenbucket.ErrInvalidLimit.Error()+": ")
		r.fail(n, path, "%s", cut(problem))
	}
	return p.limit, p.err == nil
}

// cut bounds the text of an error that quotes the document.
func cut(text string) string {
	if len(text) > 4*maxQuoted {
		return strings.ToValidUTF8(text[:4*maxQuoted], "") + "…"
	}
	return text
}

// rateOf returns the count and the period of a limit, by its text form.
func rateOf(l tokenbucket.Limit) (count int64, period string) {
	first, _, _ := strings.Cut(l.String(), " ")
	text, period, _ := strings.Cut(first, "/")
	count, _ = strconv.ParseInt(text, 10, 64) // it is one
	return count, period
}

// checkRate refuses a limit that a limiter would round to the fastest that there is.
func checkRate(l tokenbucket.Limit) error {
	count, period := rateOf(l)
	per, err := time.ParseDuration(period)
	if err == nil && float64(count)/per.Seconds() > maxRate { // an error is a day, a week or a month
		return fmt.Errorf("%s is more than %d a second", l, int64(maxRate))
	}
	return nil
}

// limits returns a plan of several limits, or nil for a wrong one.
func (r *reader) limits(n ast.Node, path string) tokenbucket.Plan {
	var all tokenbucket.Limits
	names := make(map[string]bool)
	before := len(r.list)
	r.items(n, path, "a list of limits", func(n ast.Node, path string) {
		l, ok := r.parseLimit(n, path)
		if !ok {
			return
		}
		all = append(all, l)
		_, name := rateOf(l)
		for option := range strings.FieldsSeq(l.String()) {
			if given, ok := strings.CutPrefix(option, "name="); ok {
				name = given
			}
		}
		if names[name] {
			r.fail(n, path, "two limits are called %q; tell them apart with name=", name)
		}
		names[name] = true
		if len(all) == maxLimits+1 {
			r.fail(n, path, "more than %d limits", maxLimits)
		}
	})
	if len(r.list) > before {
		return nil
	}
	return all
}

// overrides walks the overrides of one rule.
type overrides struct {
	*reader
	taken   map[string]int // the line of each key
	lengths map[int]bool   // of prefixes
	keys    []string       // of the item that is walked
}

// walk walks a list of overrides. item returns the fields of one, and a function that is called
// after them. Each has keys, and exactly one of the fields called values.
func (o *overrides) walk(e entry, want string, item func(entry) (fields, func()), values ...string) {
	o.items(e.value, e.path, "a list of overrides, such as { keys: [k], "+values[0]+": … }", func(n ast.Node, path string) {
		o.keys = nil
		of := entry{node: n, value: n, path: path}
		table, done := item(of)
		given := o.fields(n, path, "a mapping with keys and "+want, table)
		if given["keys"] == nil {
			o.fail(n, path, "it has no keys")
		}
		if o.oneAtMost(of, given, values...) == 0 {
			o.fail(n, path, "it has no %s", want)
		}
		done()
	})
}

func (o *overrides) readKeys(e entry) {
	o.items(e.value, e.path, "a list of keys, such as [team-7, partner-*]", func(n ast.Node, path string) {
		key, ok := o.text(n, path, "a key")
		if !ok {
			return
		}
		if err := o.checkKey(key); err != nil {
			o.fail(n, path, "%v", err)
			return
		}
		line, _ := position(n.GetToken())
		if first, ok := o.taken[key]; ok {
			o.fail(n, path, "the key %s is given twice, first in line %d", quote(key), first)
			return
		}
		o.taken[key] = line
		o.keys = append(o.keys, key)
	})
}

func (o *overrides) checkKey(key string) error {
	if key == "*" {
		return errors.New("an asterisk alone is no prefix: the rule of all keys stands beside overrides")
	}
	if err := naming.CheckKey(key); err != nil {
		return err
	}
	if prefix, ok := strings.CutSuffix(key, "*"); ok {
		o.lengths[len(prefix)] = true
		if len(o.lengths) > keymatch.MaxLengths {
			return fmt.Errorf("prefixes of more than %d lengths", keymatch.MaxLengths)
		}
	}
	return nil
}

// errorOf returns an error of a rule that only its mechanism finds, with its place.
func (d *document) errorOf(m mechanism, err error) Error {
	e := Error{Line: 1, Column: 1, Text: cut(err.Error())}
	kind, name := m.id()
	e.Path = join(kind, name)
	if rule := d.limits[name]; kind == limits && rule != nil {
		e.Line, e.Column, e.Path = rule.line, rule.column, rule.path
	}
	if rule := d.semaphores[name]; kind == semaphores && rule != nil {
		e.Line, e.Column, e.Path = rule.line, rule.column, rule.path
	}
	return e
}
