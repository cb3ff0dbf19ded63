package rules

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

const (
	// space has the documents, one for each name, and the versions of each as name@version.
	space = "rules"
	// MaxHistory is how many versions of a document a store keeps.
	MaxHistory = 20
	// maxBy and maxWhy bound who and why, in bytes.
	maxBy, maxWhy = 256, 1024
)

// ErrChanged is matched by the error of a Push or a Rollback that names an old version. It is a
// *[ChangedError]. Nothing was changed.
var ErrChanged = errors.New("rules: the document has changed")

// ChangedError is the error of a Push or a Rollback that names an old version.
type ChangedError struct {
	Present Version // in the store: none if its Number is 0
}

// Error says which version the store has.
func (e *ChangedError) Error() string {
	if e.Present.Number == 0 {
		return "rules: the document has changed: the store has none"
	}
	return fmt.Sprintf("rules: the document has changed: the store has version %d, by %s", e.Present.Number, e.Present.By)
}

// Is reports whether target is [ErrChanged].
func (e *ChangedError) Is(target error) bool { return target == ErrChanged }

// Version is a document that was pushed.
type Version struct {
	Number   int64 // of the store: each is larger than all before it, and does not follow them closely
	Document []byte
	By, Why  string
	At       time.Time // by the clock of the process that has pushed it; zero if Push has not put it
}

// header is what Push keeps with a document, as a comment in front of it.
type header struct {
	By  string    `json:"by"`
	Why string    `json:"why,omitempty"`
	At  time.Time `json:"at"`
	ID  string    `json:"id"` // tells a push from another one of the same text
}

// pushed is what the store has of a document.
type pushed struct {
	header
	text []byte
}

const headerPrefix = "# lockkeeper rules "

// wrap returns a document with its header.
func (p *pushed) wrap() []byte {
	var b bytes.Buffer
	b.WriteString(headerPrefix)
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(p.header) // to memory, and there is nothing in it that JSON has no text for; it ends the line
	b.Write(p.text)
	return b.Bytes()
}

// unwrap returns the document and the header of the store's text. A text that Push has not put has
// no header.
func unwrap(data []byte) (p pushed) {
	line, text, ok := bytes.Cut(data, []byte{'\n'})
	if head, is := bytes.CutPrefix(line, []byte(headerPrefix)); ok && is && json.Unmarshal(head, &p.header) == nil {
		p.text = text
		return p
	}
	return pushed{text: data}
}

func versionOf(number int64, data []byte) Version {
	p := unwrap(data)
	return Version{number, p.text, p.By, p.Why, p.At}
}

func checkName(name string) error {
	if err := naming.CheckName(name); err != nil {
		return fmt.Errorf("Store: the %w", err)
	}
	if strings.Contains(name, "@") {
		return fmt.Errorf("Store: name %q has an @", name)
	}
	return nil
}

func checkAuthor(by, why string) error {
	for _, c := range []struct {
		what, text string
		most       int
	}{{"who", by, maxBy}, {"why", why, maxWhy}} {
		switch {
		case len(c.text) > c.most:
			return fmt.Errorf("rules: %s has %d bytes, at most %d are allowed", c.what, len(c.text), c.most)
		case !utf8.ValidString(c.text) || strings.ContainsFunc(c.text, unicode.IsControl):
			return fmt.Errorf("rules: %s is not a line of text", c.what)
		}
	}
	if by == "" {
		return errors.New("rules: who is empty")
	}
	return nil
}

// Push puts a document into a store, under a name, in the place of the version that the caller has
// seen: 0 if there was none. It keeps the last 20 documents, each with who has pushed it and why.
// Processes that follow it ([Store]) have it within their interval, processes that share the
// caller's store at once. It returns the new version.
//
// The document is checked, without names: each process knows its own. The error is one of:
//   - an *[Errors] if the document has errors;
//   - a *[ChangedError], which matches [ErrChanged] and has the version in the store, if that is not
//     the one that was seen; the version returned is that one;
//   - one of the store. If it matches store.ErrUnconfirmed, the document may have been put.
//
// With an error nothing was changed, but for one that matches store.ErrUnconfirmed.
func Push(ctx context.Context, st store.Documents, name string, document []byte, seen int64, by, why string) (int64, error) {
	if err := checkPush(st, name, by, why); err != nil {
		return 0, err
	}
	if err := Check(document); err != nil {
		return 0, err
	}
	before, found, err := st.GetDocument(ctx, space, name)
	switch {
	case err != nil:
		return 0, err
	case !found:
		before = store.Document{}
	}
	if before.Version != seen {
		return before.Version, &ChangedError{versionOf(before.Version, before.Data)}
	}
	req := store.DocumentRequest{Space: space, Name: name, Version: store.NoDocument}
	if found { // kept already, unless the process that has pushed it ended before
		if err := keep(ctx, st, name, before.Version, before.Data); err != nil {
			return 0, err
		}
		req.Version = seen
	}
	p := pushed{header{by, why, time.Now().Round(0), naming.NewID()}, document}
	req.Data = p.wrap()
	version, ok, err := st.PutDocument(ctx, req)
	switch {
	case err != nil:
		return 0, err
	case !ok:
		return changed(ctx, st, name, version)
	}
	wake(st, name)
	if keep(ctx, st, name, version, req.Data) == nil { // otherwise the next push keeps it
		trim(ctx, st, name)
	}
	return version, nil
}

func checkPush(st store.Documents, name, by, why string) error {
	if naming.IsNil(st) {
		return errors.New("rules: Push: nil store")
	}
	if err := checkName(name); err != nil {
		return fmt.Errorf("rules: Push: %w", err)
	}
	return checkAuthor(by, why)
}

// changed returns the error of a push that has come second.
func changed(ctx context.Context, st store.Documents, name string, version int64) (int64, error) {
	e := &ChangedError{Version{Number: version}}
	if d, ok, err := st.GetDocument(ctx, space, name); err == nil && ok {
		e.Present = versionOf(d.Version, d.Data)
	}
	return e.Present.Number, e
}

// keep puts a version of a document beside it.
func keep(ctx context.Context, st store.Documents, name string, version int64, data []byte) error {
	at := name + "@" + strconv.FormatInt(version, 10)
	_, _, err := st.PutDocument(ctx, store.DocumentRequest{Space: space, Name: at, Data: data, Version: store.NoDocument})
	return err
}

// trim removes the oldest versions beyond the maximum. What is left the next push removes.
func trim(ctx context.Context, st store.Documents, name string) {
	kept, err := history(ctx, st, name)
	if err != nil {
		return
	}
	for _, v := range kept[min(len(kept), MaxHistory):] {
		_, _ = st.RemoveDocument(ctx, space, name+"@"+strconv.FormatInt(v.Number, 10), store.AnyVersion)
	}
}

// history returns the versions that are kept beside a document, the newest first.
func history(ctx context.Context, st store.Documents, name string) (kept []Version, err error) {
	for d, err := range st.ListDocuments(ctx, space) {
		if err != nil {
			return nil, err
		}
		rest, ok := strings.CutPrefix(d.Name, name+"@")
		if number, err := strconv.ParseInt(rest, 10, 64); ok && err == nil {
			kept = append(kept, versionOf(number, d.Data))
		}
	}
	slices.SortFunc(kept, func(a, b Version) int { return cmp.Compare(b.Number, a.Number) })
	return kept, nil
}

// Present returns the document that the store has under a name, or a zero Version if it has none.
// Its number is what Push and Rollback want as seen. The error is the store's.
func Present(ctx context.Context, st store.Documents, name string) (Version, error) {
	d, ok, err := st.GetDocument(ctx, space, name)
	if err != nil || !ok {
		return Version{}, err
	}
	return versionOf(d.Version, d.Data), nil
}

// History returns the last 20 versions of the document with a name, the newest first. The first one
// is the present one, unless the document was removed. It lists all documents with rules of the
// store. The error is the store's.
func History(ctx context.Context, st store.Documents, name string) ([]Version, error) {
	present, err := Present(ctx, st, name)
	if err != nil {
		return nil, err
	}
	kept, err := history(ctx, st, name)
	if err != nil {
		return nil, err
	}
	if present.Number > 0 && (len(kept) == 0 || kept[0].Number < present.Number) { // its push was interrupted
		kept = slices.Insert(kept, 0, present)
	}
	return kept[:min(len(kept), MaxHistory)], nil
}

// InspectHistory returns the [History] of the document, without texts: none if the source is no
// [Store]. The error is the store's.
func (r *Rules) InspectHistory(ctx context.Context) (all []inspect.RulesVersion, err error) {
	s, ok := r.source.(*storeSource)
	if !ok {
		return nil, nil
	}
	versions, err := History(ctx, s.store, s.document)
	for _, v := range versions {
		all = append(all, inspect.RulesVersion{
			Number: v.Number, Hash: hashOf(v.Document), Bytes: len(v.Document), By: v.By, Why: v.Why, At: v.At,
		})
	}
	return all, err
}

// ErrNoVersion is matched by the error of a Rollback to a version that the store does not have.
var ErrNoVersion = errors.New("rules: the store does not have this version")

// Rollback pushes an earlier version of the document with a name again, as a new version, which it
// returns. Its errors are those of [Push], and [ErrNoVersion] if the version is none of [History].
func Rollback(ctx context.Context, st store.Documents, name string, version, seen int64, by, why string) (int64, error) {
	if err := checkPush(st, name, by, why); err != nil {
		return 0, err
	}
	all, err := History(ctx, st, name)
	if err != nil {
		return 0, err
	}
	for _, v := range all {
		if v.Number == version {
			return Push(ctx, st, name, v.Document, seen, by, why)
		}
	}
	return 0, fmt.Errorf("%w: %d", ErrNoVersion, version)
}

// followers are the Rules of this process that follow a document of a store, so that a push of the
// process reaches them at once.
var followers = struct {
	mu sync.Mutex
	of map[followed]map[*Rules]bool
}{of: make(map[followed]map[*Rules]bool)}

type followed struct {
	store store.Documents
	name  string
}

// follow has wake reach r until the returned function is called.
func follow(s *storeSource, r *Rules) (end func()) {
	if !reflect.TypeOf(s.store).Comparable() {
		return func() {}
	}
	f := followed{s.store, s.document}
	followers.mu.Lock()
	defer followers.mu.Unlock()
	if followers.of[f] == nil {
		followers.of[f] = make(map[*Rules]bool)
	}
	followers.of[f][r] = true
	return func() {
		followers.mu.Lock()
		defer followers.mu.Unlock()
		if delete(followers.of[f], r); len(followers.of[f]) == 0 {
			delete(followers.of, f)
		}
	}
}

// wake has the Rules that follow a document read it now.
func wake(st store.Documents, name string) {
	if !reflect.TypeOf(st).Comparable() {
		return
	}
	followers.mu.Lock()
	defer followers.mu.Unlock()
	for r := range followers.of[followed{st, name}] {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}
