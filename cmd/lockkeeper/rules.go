package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// checkView is the errors of documents.
type checkView struct {
	Files []fileView `json:"files"`
	Notes []string   `json:"notes,omitempty"` // of the processes
}

type fileView struct {
	File   string      `json:"file"`
	Errors []ruleError `json:"errors"`
}

type ruleError struct {
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Path   string `json:"path,omitempty"`
	Text   string `json:"text"`
}

func (v *checkView) text(p printer) {
	for _, f := range v.Files {
		for _, e := range f.Errors {
			p.line("%s:%s", f.File, new(rules.Error(e)).Error())
		}
		if len(f.Errors) == 0 {
			p.line("%s: no errors", f.File)
		}
	}
	for _, text := range v.Notes {
		p.line("%s", text)
	}
}

// fileOf returns a file with the errors of its document.
func fileOf(name string, err error) fileView {
	f := fileView{File: name, Errors: []ruleError{}}
	var errs *rules.Errors
	if errors.As(err, &errs) {
		for _, e := range errs.List {
			f.Errors = append(f.Errors, ruleError(e))
		}
	}
	return f
}

func checkRules(ctx context.Context, c *call) error {
	texts := make([][]byte, len(c.args))
	for i, name := range c.args {
		var err error
		if texts[i], err = c.readDocument(name); err != nil {
			return err
		}
	}
	v, known := &checkView{}, []string(nil)
	var fleet []presence.Process
	if c.against != "" {
		var err error
		if fleet, err = c.fleetAgainst(ctx); err != nil {
			return err
		}
		known = namesOf(fleet)
		v.Notes = notesOf(fleet)
	}
	found := false
	for i, name := range c.args {
		f := fileOf(name, rules.Check(texts[i], known...))
		found = found || len(f.Errors) > 0
		v.Files = append(v.Files, f)
		if len(f.Errors) == 0 {
			v.Notes = append(v.Notes, missingOf(name, texts[i], fleet)...)
		}
	}
	if err := c.print(v); err != nil {
		return err
	}
	if found {
		return errFound
	}
	return nil
}

// fleetAgainst returns the processes of the store of -against.
func (c *call) fleetAgainst(ctx context.Context) ([]presence.Process, error) {
	if c.url = c.against; c.against == "env" {
		c.url = os.Getenv(environment)
	}
	if c.url == "" {
		return nil, misused("-against env: set %s", environment)
	}
	end, err := c.openStore()
	if err != nil {
		return nil, err
	}
	defer end()
	return presence.Fleet(ctx, c.store)
}

// namesOf returns the paths of the rules that processes can have.
func namesOf(fleet []presence.Process) []string {
	fields := map[string]string{"rate_limit": "limits.", "semaphore": "semaphores."}
	known := map[string]bool{"limits.": true} // no name: without any, each name would do
	for i := range fleet {
		for j := range fleet[i].Mechanisms {
			if m := &fleet[i].Mechanisms[j]; fields[m.Kind] != "" {
				known[fields[m.Kind]+m.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(known))
}

// notesOf returns what limits a comparison with processes, and the states of their rules that are not
// those of their source.
func notesOf(fleet []presence.Process) (notes []string) {
	if len(fleet) == 0 {
		return []string{"no process shows itself: call presence.Start, or console.New, in each of them"}
	}
	for i := range fleet {
		p := &fleet[i]
		name := fmt.Sprintf("%s on %s (process %d)", quoted(p.Service), quoted(p.Host), p.PID)
		switch {
		case p.Unreadable != "":
			notes = append(notes, fmt.Sprintf("the description of process %s is unreadable: %s", quoted(p.ID), quoted(p.Unreadable)))
		case p.More > 0:
			notes = append(notes, fmt.Sprintf("%s does not describe %d of its mechanisms", name, p.More))
		}
		for _, r := range p.Rules {
			if r.State != operate.RulesCurrent {
				of := rulesView(r)
				notes = append(notes, fmt.Sprintf("%s: rules %s for %s", name, of.describe(), operate.Short(r.Since)))
			}
		}
	}
	return notes
}

// missingOf returns the names of a good document that some of the processes with rules do not have.
func missingOf(file string, text []byte, fleet []presence.Process) (notes []string) {
	checked := make(map[string]*rules.Errors) // by the names of a process
	lack := make(map[rules.Error]int)
	follow := 0
	for i := range fleet {
		if len(fleet[i].Rules) == 0 {
			continue
		}
		follow++
		names := namesOf(fleet[i : i+1])
		all := strings.Join(names, "\x00")
		errs, ok := checked[all]
		if !ok {
			_ = errors.As(rules.Check(text, names...), &errs)
			checked[all] = errs
		}
		if errs != nil {
			for _, e := range errs.List {
				lack[rules.Error{Line: e.Line, Column: e.Column, Path: e.Path}]++
			}
		}
	}
	for _, e := range slices.SortedFunc(maps.Keys(lack), func(a, b rules.Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	}) {
		notes = append(notes, fmt.Sprintf("%s:%d:%d: %s: %d of %s with rules do not have it, and accept it as rules.Optional only",
			file, e.Line, e.Column, quoted(e.Path), lack[e], counted(follow, "process", "processes")))
	}
	return notes
}

// maxRead bounds a document that is read, in bytes. A larger one than is allowed is read, so that its
// error is that of a document.
const maxRead = 4 << 20

// readDocument reads a file, or standard input.
func (c *call) readDocument(name string) ([]byte, error) {
	from := c.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		from = f
	}
	return io.ReadAll(io.LimitReader(from, maxRead))
}

// document returns the name of the document in the store.
func (c *call) document() (string, error) {
	switch {
	case c.rulesName == "":
		return "", misused("say -name, that of rules.Store")
	case strings.Contains(c.rulesName, "@"):
		return "", misused("-name: %q has an @", c.rulesName)
	}
	return c.rulesName, nil
}

// present returns the document of the store. Its number is 0 if there is none.
func (c *call) present(ctx context.Context) (name string, v rules.Version, err error) {
	if name, err = c.document(); err == nil {
		v, err = rules.Present(ctx, c.store, name)
	}
	return name, v, err
}

func hashOf(document []byte) string {
	sum := sha256.Sum256(document)
	return hex.EncodeToString(sum[:8])
}

// versionView is a version of a document. Only `rules show` has its text.
type versionView struct {
	Version  int64     `json:"version,string"`
	Hash     string    `json:"hash"`
	At       time.Time `json:"at,omitzero"`
	By       string    `json:"by,omitempty"`
	Why      string    `json:"why,omitempty"`
	Document string    `json:"document,omitempty"`
}

func versionOf(v rules.Version) *versionView {
	return &versionView{Version: v.Number, Hash: hashOf(v.Document), At: v.At, By: v.By, Why: v.Why}
}

// when returns how long ago the version was pushed, by the clocks of its process and of this one.
func (v *versionView) when() string {
	if v.At.IsZero() {
		return ""
	}
	return operate.Short(max(time.Since(v.At), 0)) + " ago"
}

func (v *versionView) text(p printer) {
	var t table
	t.add("version", strconv.FormatInt(v.Version, 10))
	t.add("hash", v.Hash)
	if v.By != "" {
		t.add("pushed", v.when()+" by "+quoted(v.By))
		t.add("why", quoted(v.Why))
	}
	t.print(p)
}

const noDocument = "The store has no document of this name."

func showRules(ctx context.Context, c *call) error {
	_, present, err := c.present(ctx)
	switch {
	case err != nil:
		return err
	case present.Number == 0:
		return c.nothing(noDocument)
	}
	v := versionOf(present)
	if c.json {
		v.Document = string(present.Document)
		return c.print(v)
	}
	v.text(c.errs)
	if !isTerminal(c.stdout) { // a copy of it
		_, err := c.stdout.Write(present.Document)
		return err
	}
	for _, line := range linesOf(present.Document) {
		c.out.line("%s", visible(line))
	}
	return nil
}

// historyView is the last versions of a document.
type historyView struct {
	Name     string         `json:"name"`
	Versions []*versionView `json:"versions"` // the newest first
}

func (v *historyView) text(p printer) {
	if len(v.Versions) == 0 {
		p.line(noDocument)
		return
	}
	var t table
	t.add("VERSION", "HASH", "WHEN", "WHO", "WHY")
	for _, one := range v.Versions {
		t.add(strconv.FormatInt(one.Version, 10), one.Hash, one.when(), quoted(one.By), quoted(one.Why))
	}
	t.print(p)
}

func rulesHistory(ctx context.Context, c *call) error {
	name, err := c.document()
	if err != nil {
		return err
	}
	all, err := rules.History(ctx, c.store, name)
	if err != nil {
		return err
	}
	v := &historyView{name, []*versionView{}}
	for _, one := range all {
		v.Versions = append(v.Versions, versionOf(one))
	}
	return c.print(v)
}

// diffView compares the document of the store with another one.
type diffView struct {
	Name    string     `json:"name"`
	Version int64      `json:"version,string"` // of the store; 0 if it has none
	Hash    string     `json:"hash"`           // of the other document
	Same    bool       `json:"same"`
	Lines   []diffLine `json:"lines,omitempty"` // if they differ
}

func diffOf(name string, present rules.Version, other []byte) *diffView {
	v := &diffView{Name: name, Version: present.Number, Hash: hashOf(other)}
	if v.Same = present.Number > 0 && string(present.Document) == string(other); !v.Same {
		v.Lines = diff(present.Document, other)
	}
	return v
}

func (v *diffView) text(p printer) {
	switch {
	case v.Same:
		p.line("Rules %s, version %d: no difference.", quoted(v.Name), v.Version)
		return
	case v.Version == 0:
		p.line("The store has no rules %s: version 0.", quoted(v.Name))
	default:
		p.line("Rules %s, version %d, and the file:", quoted(v.Name), v.Version)
	}
	printDiff(p, v.Lines)
	if !slices.ContainsFunc(v.Lines, func(l diffLine) bool { return l.Op != " " }) {
		p.line("They differ in the line break at the end only.")
	}
}

func diffRules(ctx context.Context, c *call) error {
	text, err := c.readDocument(c.args[0])
	if err != nil {
		return err
	}
	name, present, err := c.present(ctx)
	if err != nil {
		return err
	}
	v := diffOf(name, present, text)
	if err := c.print(v); err != nil || v.Same {
		return err
	}
	return errFound
}
