// Package console is a page for operators: what is wrong, what passes and what is denied, who holds
// which lock, who waits, and the few actions that help. It is an http.Handler in the application,
// shows all processes that share its store, and needs nothing beside them.
//
//	c := console.New(store, console.Authorize(func(r *http.Request) (console.Operator, error) {
//		user, err := session(r) // yours
//		if err != nil {
//			return console.Operator{}, err
//		}
//		return console.Operator{Name: user.Name, May: console.Act}, nil
//	}))
//	defer c.Close()
//	mux.Handle("/lockkeeper/", http.StripPrefix("/lockkeeper", c))
//
// It keeps no session and no password: the application decides who may see it, request by request.
// Keys of locks, limits and tasks are not shown, unless [ShowKeys] is given, and never stand in URLs,
// logs or metrics.
package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/operate"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// ScopeName is the name of the instrumentation scope.
const ScopeName = "github.com/lockkeeper/lockkeeper/nethttp/console"

// Operator is the person, or the program, that sends a request.
type Operator struct {
	// Name is what the log of actions calls it. It must not be empty for an operator who may act.
	Name string
	May  Rights
}

// Rights are what an operator may do.
type Rights int

const (
	// View lets an operator see all pages.
	View Rights = 1 + iota
	// Act lets an operator also carry out actions.
	Act
)

// Action is an action of an operator, for [OnAction].
type Action struct {
	Kind     string // such as release_lock
	Name     string // the mechanism's
	KeyID    string // it stands for the key; an operation's ID
	Operator string
	Why      string // on one line
	Detail   string // such as the time of a hold
	// Outcome is empty before the action, and then done, changed, failed or unconfirmed.
	Outcome string
}

// Option configures a Console.
type Option func(*config)

type config struct {
	authorize func(*http.Request) (Operator, error)
	readOnly  bool
	showKeys  bool
	others    []store.Documents
	onAction  func(context.Context, Action) error
	links     []link
	rules     []inspect.RulesInspector
	logger    *slog.Logger
	providers telemetry.Providers
	service   string
}

// Authorize sets the function that decides who sends a request, and what it may do. It is called for
// every request, also for those of scripts. An error, or no rights, is answered with status 403,
// without the error's text. f must not write to the response: a page that asks for a password stands
// in front of the console.
func Authorize(f func(*http.Request) (Operator, error)) Option {
	return func(c *config) { c.authorize = f }
}

// AllowAnyone gives everyone who reaches the handler the right to act, under the name "anyone". It is
// for demonstrations, and for listeners that only operators reach.
func AllowAnyone() Option {
	return Authorize(func(*http.Request) (Operator, error) { return Operator{"anyone", Act}, nil })
}

// ReadOnly has the console refuse all actions.
func ReadOnly() Option { return func(c *config) { c.readOnly = true } }

// ShowKeys shows the keys of locks, limits and tasks in pages, and not only their IDs, and shows
// the keys that this process's limiters deny to all readers of the store (presence.ShowKeys). Keys
// are often personal data: addresses, names of customers.
func ShowKeys() Option { return func(c *config) { c.showKeys = true } }

// Including also shows other stores of this process.
func Including(stores ...store.Documents) Option {
	return func(c *config) { c.others = append(c.others, stores...) }
}

// OnAction has f called before each action, and after it with its outcome. An error before the action
// refuses it, with the error's text for the operator, such as "name a ticket"; one after it is logged.
func OnAction(f func(context.Context, Action) error) Option {
	return func(c *config) { c.onAction = f }
}

// Rules adds the page Rules, with the documents that this process follows: each is a *rules.Rules of
// package core/rules. Their texts are shown with [ShowKeys] only, as they may have keys. Other
// processes see the states of these rules as by presence.WithRules, unless this one has called
// presence.Start before.
func Rules(rules ...inspect.RulesInspector) Option {
	return func(c *config) { c.rules = append(c.rules, rules...) }
}

// Service sets the name of the service in the list of processes, as presence.Service does.
func Service(name string) Option { return func(c *config) { c.service = name } }

// Link adds a link to all pages, such as one to a dashboard. The URL begins with https:, http: or a
// slash; another one is not shown.
func Link(title, url string) Option {
	return func(c *config) {
		if strings.HasPrefix(url, "https:") || strings.HasPrefix(url, "http:") || strings.HasPrefix(url, "/") {
			c.links = append(c.links, link{title, url})
		}
	}
}

type link struct{ Title, URL string }

// WithLogger sets the logger for actions: slog.Default() by default.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = cmp.Or(l, c.logger) } }

// WithMeterProvider sets the meter provider for the count of actions: the global one by default.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

// Console is the handler. It may be mounted below any path that is stripped from the requests.
type Console struct {
	config
	stores   []store.Documents
	presence *presence.Presence
	fleet    fleet
	crossing *http.CrossOriginProtection
	actions  *telemetry.Console
}

// New returns a console for the mechanisms of all processes that have the store, and calls
// presence.Start for this one. A store without some of the mechanisms, such as core/etcdstore, has no
// pages with them.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// It panics if neither [Authorize] nor [AllowAnyone] is given, and if the store or rules are nil.
func New(st store.Documents, opts ...Option) *Console {
	c := &Console{config: config{logger: slog.Default()}, crossing: http.NewCrossOriginProtection()}
	option.Apply(&c.config, opts)
	switch {
	case naming.IsNil(st):
		panic("console: New: nil store")
	case c.authorize == nil:
		panic("console: New: say who may see it: Authorize, or AllowAnyone")
	}
	for _, r := range c.rules {
		if naming.IsNil(r) {
			panic("console: New: Rules: nil rules")
		}
	}
	c.stores = append([]store.Documents{st}, c.others...)
	var options []presence.Option
	for _, other := range c.others {
		options = append(options, presence.Including(other))
	}
	if c.service != "" {
		options = append(options, presence.Service(c.service))
	}
	if c.showKeys {
		options = append(options, presence.ShowKeys())
	}
	options = append(options, presence.WithLogger(c.logger), presence.WithRules(c.rules...))
	p, err := presence.Start(st, options...)
	if err != nil {
		panic(fmt.Sprintf("console: New: %v", err))
	}
	c.presence = p
	c.fleet.begin(st, p, c.rules)
	c.actions = telemetry.NewConsole(c.providers, c.logger, ScopeName)
	return c
}

// closeTimeout is the longest time for which Close waits for the store.
const closeTimeout = 5 * time.Second

// Close ends what New has begun. Its error is the store's, if the process's description is left there
// for its last 15 s.
func (c *Console) Close() error {
	c.fleet.stop()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return c.presence.Stop(ctx)
}

// operator returns who sends a request. It reports false if the console is not for them.
func (c *Console) operator(r *http.Request) (Operator, bool) {
	who, err := c.authorize(r)
	if err != nil || who.May < View || who.May > Act {
		return Operator{}, false
	}
	if c.readOnly || who.Name == "" {
		who.May = View
	}
	return who, true
}

// maxBody bounds the body of a request, in bytes.
const maxBody = 16 << 10

// ServeHTTP answers with a page, with the same as JSON if the query has format=json, or with a file of
// the pages.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "+
		"img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if r.URL.Path == "" { // of a mount without a slash at its end: relative links need one
		header.Set("Location", slashed(r))
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	q := &request{Request: r, console: c, path: split(r.URL.EscapedPath())}
	var ok bool
	if q.operator, ok = c.operator(r); !ok {
		q.fail(w, http.StatusForbidden, "This is not for you, or your session has ended.")
		return
	}
	if file, ok := files[q.path.at(0)]; ok && q.path.len() == 1 && r.Method != http.MethodPost {
		file.serve(w, r)
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		if err := c.crossing.Check(r); err != nil {
			q.fail(w, http.StatusForbidden, "This request comes from another site.")
			return
		}
		if err := q.readForm(w); err != nil {
			q.fail(w, http.StatusBadRequest, err.Error())
			return
		}
	default:
		header.Set("Allow", "GET, HEAD, POST")
		q.fail(w, http.StatusMethodNotAllowed, "Only GET, HEAD and POST are known here.")
		return
	}
	switch q.URL.Query().Get("format") {
	case "", "html", "json":
	default:
		q.fail(w, http.StatusBadRequest, "The format is html or json.")
		return
	}
	if err := q.serve(w); err != nil {
		status, text := answerTo(err)
		q.fail(w, status, text)
	}
}

// problem is an error with an answer of its own.
type problem struct {
	status int
	text   string
}

func (p problem) Error() string { return p.text }

var errNotFound = problem{http.StatusNotFound, "There is no such page."}

// answerTo returns the status and the text of the answer to an error.
func answerTo(err error) (status int, text string) {
	var p problem
	switch {
	case errors.As(err, &p):
		return p.status, p.text
	case errors.Is(err, operate.ErrInvalid):
		return http.StatusBadRequest, sentence(err)
	case errors.Is(err, operate.ErrUnknownHere):
		return http.StatusConflict, sentence(err)
	case errors.Is(err, store.ErrNotSupported):
		return http.StatusNotImplemented, "The store cannot do that."
	case errors.Is(err, store.ErrUnavailable):
		return http.StatusServiceUnavailable, storeText(err)
	}
	return http.StatusInternalServerError, "It failed: " + err.Error()
}

// storeText tells an operator what a store's error means.
func storeText(err error) string {
	switch cause := store.CauseOf(err); {
	case errors.Is(err, store.ErrUnconfirmed):
		return "The store did not reply in time, and may have done it: look again."
	case errors.Is(err, store.ErrClosed):
		return "The store is closed: this process ends."
	case cause != "" && cause != store.OtherCause:
		return fmt.Sprintf("The store does not work: %s.", cause)
	}
	return "The store does not work."
}
