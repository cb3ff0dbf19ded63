package rules

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// ScopeName is the instrumentation scope of the telemetry of rules.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/rules"

const (
	// defaultInterval is the time between two polls of the source, and leastInterval the least one.
	defaultInterval, leastInterval = 5 * time.Second, 10 * time.Millisecond
	// slowest bounds a read, so that a source that does not reply delays the next one little.
	slowest = 2 * time.Second
	// patience is how many polls in a row may fail before the rules are stale.
	patience = 3
)

// ErrClosed is returned by Reload after Close.
var ErrClosed = errors.New("rules: closed")

// State says whether the document of the source is in force.
type State uint8

const (
	// Current is the state while the document of the source is in force, as far as it can be read.
	Current State = iota
	// Stale is the state while an earlier document is in force: that of the source has errors, or
	// the source could not be read three times in a row.
	Stale
	// None is the state until Open has put the first document in force.
	None
)

// String returns "current", "stale" or "none".
func (s State) String() string {
	switch s {
	case Current:
		return "current"
	case Stale:
		return "stale"
	case None:
		return "none"
	}
	return "State(" + strconv.Itoa(int(s)) + ")"
}

// Applied is what is in force.
type Applied struct {
	Version  string    // that the document gives itself, or empty
	Revision int64     // of the document in the store ([Store]); 0 for other sources
	Hash     string    // the first 16 hexadecimal digits of the document's SHA-256
	At       time.Time // since when the document is in force in this process
	State    State
	Since    time.Time // since when the state is that
	Err      error     // why the rules are stale: an *[Errors], or that of the source or a mechanism; else nil
}

// Option is an optional setting of [Open].
type Option func(*config)

type config struct {
	mechanisms []any
	optional   []string
	every      time.Duration
	onChange   func(Applied)
	lastGood   bool
	logger     *slog.Logger
	providers  telemetry.Providers
}

// For adds mechanisms that the document may have rules for: each a *tokenbucket.Limiter or a
// *semaphore.Semaphore. A rule changes all of them that have its kind and name, and their variants.
//
// Settings that the document leaves out are the mechanism's when Open was called. So a rule that is
// removed is undone, and a mechanism without a rule is as the program made it, in the document's
// mode. Nothing else should change the mechanism after that, other Rules included.
func For(mechanisms ...any) Option {
	return func(c *config) { c.mechanisms = append(c.mechanisms, mechanisms...) }
}

// Optional adds names that the document may have rules for although this process has no such
// mechanism: those of the next release, while it is rolled out, or of other services with the same
// document. A name is limits.api, semaphores.gate, or api for both kinds.
func Optional(names ...string) Option {
	return func(c *config) { c.optional = append(c.optional, names...) }
}

// Every sets the longest time from one poll of the source to the next: 5 s by default, at least 10
// ms. Each is up to a tenth shorter, at random, so that processes do not read in step.
func Every(d time.Duration) Option { return func(c *config) { c.every = d } }

// OnChange sets a function that is called after each change of what [Rules.Applied] returns, from
// one goroutine at a time, but not for the document that Open has put in force. It must not call
// Reload or Close.
func OnChange(f func(Applied)) Option { return func(c *config) { c.onChange = f } }

// LastGood has Open begin with the last good version of the history if the document in the store
// has errors. The rules are stale then, until the store has a good one. Without it Open fails. It
// is an error for another source than [Store], since only that has a history.
func LastGood() Option { return func(c *config) { c.lastGood = true } }

// WithLogger sets the logger: slog.Default() by default.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = cmp.Or(l, c.logger) } }

// WithMeterProvider sets where the metrics go: to the global provider if not set, or nil.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

// Rules keep the rules of a process's mechanisms as the document of a source says. All methods may
// be called concurrently.
type Rules struct {
	config
	source     Source
	mechanisms []mechanism
	known      names
	telemetry  *telemetry.Rules
	unfollow   func()
	end        context.CancelFunc
	ended      chan struct{}
	wake       chan struct{} // has a value after a push of this process

	present atomic.Pointer[present]

	loading chan struct{} // has a value during a load, which alone uses what follows
	last    []byte        // the text that was read last
	lastErr error         // why it is not in force; nil if it is
	failed  int           // reads in a row that have failed
	began   bool          // Open has ended
}

// present is what is in force. It is replaced as a whole.
type present struct {
	Applied
	text    []byte // in force
	refused []byte // the text of the source if it has errors
}

// Open puts the document of a source in force, and then follows the source until Close.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// It returns an error, and changes nothing, if the first document cannot be read or is not accepted
// (an *[Errors]), or if an option is out of its range. After that, a bad document or a source that
// fails changes nothing either: the last good document stays in force until the next one, and
// [Applied] and the log say so.
//
// A document is put in force as a whole or not at all. Buckets, permits and waiters stay. Each
// decision of a mechanism is by one document; two mechanisms of one request may see two for a
// moment.
func Open(ctx context.Context, src Source, opts ...Option) (*Rules, error) {
	r, err := newRules(src, opts)
	if err != nil {
		return nil, fmt.Errorf("rules: Open: %w", err)
	}
	err = r.load(ctx, true)
	var errs *Errors
	if r.lastGood && errors.As(err, &errs) {
		err = r.begin(ctx, errs)
	}
	if err != nil {
		r.telemetry.Close()
		return nil, err
	}
	r.began = true
	if s, ok := src.(*storeSource); ok {
		r.unfollow = follow(s, r)
	}
	ctx, r.end = context.WithCancel(context.WithoutCancel(ctx))
	go r.run(ctx)
	return r, nil
}

func newRules(src Source, opts []Option) (*Rules, error) {
	if naming.IsNil(src) {
		return nil, errors.New("nil source")
	}
	if err := src.check(); err != nil {
		return nil, err
	}
	r := &Rules{
		config: config{every: defaultInterval, logger: slog.Default()}, source: src,
		ended: make(chan struct{}), wake: make(chan struct{}, 1), loading: make(chan struct{}, 1), unfollow: func() {},
	}
	option.Apply(&r.config, opts)
	if r.every < leastInterval {
		return nil, fmt.Errorf("Every: %v is less than %v", r.every, leastInterval)
	}
	if _, ok := src.(*storeSource); r.lastGood && !ok {
		return nil, fmt.Errorf("LastGood: a %s has no history", src.kind())
	}
	r.known = knownNames(r.optional)
	for _, m := range r.config.mechanisms {
		m, err := mechanismOf(m)
		if err != nil {
			return nil, err
		}
		r.known.add(m.id())
		r.mechanisms = append(r.mechanisms, m)
	}
	now := time.Now()
	r.present.Store(&present{Applied: Applied{State: None, Since: now}})
	r.telemetry = telemetry.NewRules(r.providers, r.logger, ScopeName, src.name(), func() int64 { return int64(r.present.Load().State) })
	return r, nil
}

// begin puts the last good version of the history in force. It returns the error of the present one
// if there is none.
func (r *Rules) begin(ctx context.Context, bad *Errors) error {
	s := r.source.(*storeSource) // LastGood is an error for another one
	all, err := History(ctx, s.store, s.document)
	if err != nil {
		return err
	}
	for _, v := range all {
		d, err := read(v.Document, r.known)
		if err != nil || bytes.Equal(v.Document, r.last) {
			continue
		}
		if err := r.apply(d); err != nil {
			return err
		}
		r.telemetry.Loaded(ctx, telemetry.RulesApplied)
		r.putInForce(ctx, d, v.Document, v.Number)
		r.refuse(ctx, bad)
		return nil
	}
	return bad
}

// Applied returns what is in force.
func (r *Rules) Applied() Applied { return r.present.Load().Applied }

// Inspect returns what is in force, for people: with the text of the document, keys included.
func (r *Rules) Inspect() inspect.Rules {
	p := r.present.Load()
	i := inspect.Rules{
		Source: r.source.kind(), Name: r.source.name(), State: p.State.String(), Since: p.Since,
		Version: p.Version, Revision: p.Revision, Hash: p.Hash, At: p.At,
		Document: bytes.Clone(p.text), Refused: bytes.Clone(p.refused),
	}
	var errs *Errors
	switch {
	case errors.As(p.Err, &errs):
		for _, e := range errs.List {
			i.Errors = append(i.Errors, inspect.RulesError(e))
		}
	case p.Err != nil:
		i.Errors = []inspect.RulesError{{Text: p.Err.Error()}}
	}
	return i
}

// Reload reads the source now, and puts its document in force if that is another one. It returns
// nil if the document of the source is in force, and otherwise why it is not: an *[Errors], the
// error of the source, [ErrClosed], or the context's.
func (r *Rules) Reload(ctx context.Context) error { return r.load(ctx, true) }

// Close stops following the source. The document in force stays so. It waits for a read in flight,
// that of a Reload included, and returns nil.
func (r *Rules) Close() error {
	r.end()
	<-r.ended
	r.loading <- struct{}{} // a Reload that has begun before may have it
	<-r.loading
	return nil
}

// run polls the source until ctx ends.
func (r *Rules) run(ctx context.Context) {
	defer func() {
		r.unfollow()
		r.telemetry.Close()
		close(r.ended)
	}()
	began := time.Now()
	for {
		pause := r.every - rand.N(r.every/10) //nolint:gosec // spreads processes; no secret
		timer := time.NewTimer(pause - time.Since(began))
		select {
		case <-timer.C:
		case <-r.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
		began = time.Now()
		_ = r.load(ctx, false) // it is in Applied
	}
}

// load reads the source, and puts its document in force if that is another one. A text that was
// refused is refused again without a look at it, unless again is set.
func (r *Rules) load(ctx context.Context, again bool) error {
	select {
	case r.loading <- struct{}{}:
		defer func() { <-r.loading }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case r.began && r.isClosed():
		return ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	reading, cancel := context.WithTimeout(ctx, slowest)
	text, revision, err := r.source.read(reading, r.last)
	cancel()
	if err != nil {
		if ctx.Err() != nil { // says nothing about the source
			return context.Cause(ctx)
		}
		return r.unread(ctx, err)
	}
	r.failed = 0
	p := r.present.Load()
	switch {
	case p.State != None && bytes.Equal(text, p.text):
		r.last, r.lastErr = p.text, nil
		r.confirm(ctx, revision)
		return nil
	case !again && r.lastErr != nil && bytes.Equal(text, r.last):
		r.refuse(ctx, r.lastErr)
		return r.lastErr
	}
	d, err := read(text, r.known)
	if err == nil {
		err = r.apply(d)
	}
	r.last, r.lastErr = text, err
	if err != nil {
		outcome := telemetry.RulesFailed
		if errors.As(err, new(*Errors)) {
			outcome = telemetry.RulesRefused
		}
		r.telemetry.Loaded(ctx, outcome)
		r.refuse(ctx, err)
		return err
	}
	r.telemetry.Loaded(ctx, telemetry.RulesApplied)
	r.putInForce(ctx, d, text, revision)
	return nil
}

func (r *Rules) isClosed() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// apply puts a document in force in all mechanisms, or in none of them. All are compiled before the
// first one is changed.
func (r *Rules) apply(d *document) error {
	var list []Error
	changes := make([]change, 0, len(r.mechanisms))
	for _, m := range r.mechanisms {
		c, err := m.prepare(d)
		if err != nil {
			list = append(list, d.errorOf(m, err))
		}
		changes = append(changes, c)
	}
	if err := errorsOf(list); err != nil {
		return err
	}
	for i, c := range changes {
		if err := c.apply(); err != nil {
			kind, name := r.mechanisms[i].id()
			err = fmt.Errorf("rules: %s.%s: %w", kind, name, err)
			for ; i >= 0; i-- {
				_ = changes[i].undo() // fails for what is closed
			}
			return err
		}
	}
	return nil
}

// unread records that the source could not be read.
func (r *Rules) unread(ctx context.Context, err error) error {
	r.telemetry.Loaded(ctx, telemetry.RulesUnreadable)
	p := *r.present.Load()
	if r.failed++; r.failed < patience || p.State != Current {
		return err
	}
	p.State, p.Since, p.Err, p.refused = Stale, time.Now(), err, nil
	r.telemetry.Unreadable(ctx, p.Version, p.Hash, errors.Is(err, errAbsent), err)
	r.publish(&p)
	return err
}

// refuse records that the document of the source is not in force, because of err.
func (r *Rules) refuse(ctx context.Context, err error) {
	p := *r.present.Load()
	if p.State == None || p.State == Stale && bytes.Equal(p.refused, r.last) && p.Err.Error() == err.Error() {
		return
	}
	if p.State == Current {
		p.State, p.Since = Stale, time.Now()
	}
	p.Err, p.refused = err, r.last
	var errs *Errors
	if errors.As(err, &errs) {
		r.telemetry.Refused(ctx, p.Version, p.Hash, len(errs.List), errs.List[0].Line, errs.List[0].Column)
	} else {
		r.telemetry.Failed(ctx, p.Version, p.Hash, err)
	}
	r.publish(&p)
}

// putInForce records that a document was put in force.
func (r *Rules) putInForce(ctx context.Context, d *document, text []byte, revision int64) {
	now := time.Now()
	next := &present{Applied: Applied{
		Version: d.version, Revision: revision, Hash: hashOf(text), At: now, State: Current, Since: now,
	}, text: text}
	before := r.present.Load()
	if before.State == Current {
		next.Since = before.Since
	}
	r.telemetry.InForce(ctx, next.Version, revision, next.Hash)
	if before.State == Stale {
		r.telemetry.Current(ctx, next.Version, next.Hash)
	}
	r.publish(next)
}

// hashOf returns the hash by which people tell documents apart.
func hashOf(document []byte) string {
	sum := sha256.Sum256(document)
	return hex.EncodeToString(sum[:8])
}

// confirm records that the document in force is that of the source.
func (r *Rules) confirm(ctx context.Context, revision int64) {
	p := *r.present.Load()
	if p.State == Current && p.Revision == revision {
		return
	}
	p.Revision = revision
	if p.State == Stale {
		p.State, p.Since, p.Err, p.refused = Current, time.Now(), nil, nil
		r.telemetry.Current(ctx, p.Version, p.Hash)
	}
	r.publish(&p)
}

// publish replaces what Applied returns.
func (r *Rules) publish(p *present) {
	r.present.Store(p)
	if r.began && r.onChange != nil {
		r.onChange(p.Applied)
	}
}
