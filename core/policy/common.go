package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// ScopeName is the instrumentation scope of the middleware's own telemetry. Mechanisms have their
// own scopes.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/policy"

// Option is an option of the middleware of every policy and every framework.
type Option interface {
	setting.HTTPOption
	setting.RPCOption
}

// TelemetryOption is an option of the middleware of every policy and every framework, and of limits
// in a client.
type TelemetryOption interface {
	Option
	TransportOption
}

// ProblemTypes sets the base of the problem types of refusals, in bodies, Link fields and
// Denial.Type: the reason is appended to it. The application then serves a page for each type, or
// one with a section for each, which nethttp/problems can do. Without it the types are links to
// this module's own page.
//
// The base is a URL or, in HTTP alone, a path that begins with a slash. It ends in a slash, or in
// #, = or ?, followed by the reason.
//
// The types of draft-ietf-httpapi-ratelimit-headers (quota-exceeded, abnormal-usage-detected and
// temporary-reduced-capacity) stay as they are, since clients recognise them. Such a refusal links
// to the application's page with a Link field instead. In gRPC, where problems have no types, every
// refusal has the URL of its page as Help (google.rpc).
//
// It panics if base is neither such a URL nor such a path. New of gRPC's interceptors panics if it
// is a path.
func ProblemTypes(base string) Option {
	if err := checkBase(base); err != nil {
		panic(fmt.Sprintf("policy: ProblemTypes: %v", err))
	}
	return setting.Func(func(s *setting.Settings) { s.ProblemTypes = base })
}

func checkBase(base string) error {
	u, err := url.Parse(base)
	switch {
	case err != nil:
		return errors.New("the base cannot be parsed as a URL") // the base may have a password, so it is not quoted
	case u.User != nil:
		return fmt.Errorf("%q shows a user name to every client", u.Redacted())
	case strings.ContainsFunc(base, notInURL):
		return fmt.Errorf("%q has a character that no URL has", base)
	case !isWebURL(u) && !isPath(base):
		return fmt.Errorf("%q is neither an http or https URL nor a path that begins with a slash", base)
	case !strings.ContainsRune("/#=?", rune(base[len(base)-1])):
		return fmt.Errorf("%q does not end in a slash, # or =, and runs into the reason that is appended", base)
	}
	return nil
}

func isWebURL(u *url.URL) bool { return (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" }

// isPath reports whether a base is a path of the same host; two slashes begin another host's name.
func isPath(base string) bool {
	return strings.HasPrefix(base, "/") && !strings.HasPrefix(base, "//")
}

// notInURL reports whether a character cannot be in a URL (RFC 3986, section 2).
func notInURL(r rune) bool {
	return r <= ' ' || r > '~' || strings.ContainsRune("\"<>\\^`{|}", r)
}

// Logger sets the logger for the events that no answer shows:
//
//   - requests pass without the store ([FailOpen], [RunUnprotected]);
//   - the application did not provide the key of a request, or gave it a cost that its limits
//     cannot charge;
//   - the same middleware is in a chain twice, two guards are in one chain, or idempotency is
//     behind a lock or a permit;
//   - a handler leaves its answer to middleware outside, or an http.TimeoutHandler stands inside;
//   - an answer is larger than its guard keeps;
//   - in gin, errors that OnError would get; and
//   - a client could not hold a key for other processes.
//
// Without it, or with nil, that is slog.Default() at the time when the middleware is built.
func Logger(l *slog.Logger) TelemetryOption {
	return setting.Func(func(s *setting.Settings) { s.Logger = l })
}

// MeterProvider sets the provider for the counts of requests that pass without the store, and of
// requests that a [Shadow] would have denied. Without it, or with nil, that is the global provider.
func MeterProvider(p metric.MeterProvider) TelemetryOption {
	return setting.Func(func(s *setting.Settings) { s.Meter = p })
}
