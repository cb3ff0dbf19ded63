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

// ScopeName is the instrumentation scope of the middleware's own telemetry. That of the mechanisms
// is theirs.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/policy"

// Option is an option of the middleware of every policy and every framework.
type Option interface {
	setting.HTTPOption
	setting.RPCOption
}

// TelemetryOption is an option of the middleware of every policy and every framework, and of the
// limits on what a client sends.
type TelemetryOption interface {
	Option
	TransportOption
}

// ProblemTypes sets what the problem types of refusals begin with, in bodies, Link fields and
// Denial.Type: the reason is appended. The application then has a page for each type, or one with a
// section for each, which nethttp/problems can serve. Without it the types are links to this
// module's own page.
//
// The base is a URL or, in HTTP alone, a path that begins with a slash. It ends in a slash, or in
// #, = or the like, behind which clients find the reason.
//
// The types of draft-ietf-httpapi-ratelimit-headers (quota-exceeded, abnormal-usage-detected and
// temporary-reduced-capacity) stay as they are, since clients recognise them. Such a refusal links
// to the application's page with a Link field instead. In gRPC, where problems have no types, every
// refusal has the URL of its page as Help (google.rpc).
//
// It panics if base is neither such a URL nor such a path, and New of gRPC's interceptors if it is
// a path.
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
		return errors.New("the base cannot be parsed as a URL") // which may have a password, so it is not quoted
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

// Logger sets where a middleware logs what no answer shows: that requests pass without the store
// ([FailOpen], [RunUnprotected]), that the application did not provide what requests are keyed by,
// that idempotency is in a chain twice or behind a lock, and that a client could not tell other
// processes to hold a key. Without it, or with nil, that is slog.Default() at the time when the
// middleware is built.
func Logger(l *slog.Logger) TelemetryOption {
	return setting.Func(func(s *setting.Settings) { s.Logger = l })
}

// MeterProvider sets where a middleware counts the requests that pass without the store, and those
// that a [Shadow] would have denied. Without it, or with nil, that is the global provider.
func MeterProvider(p metric.MeterProvider) TelemetryOption {
	return setting.Func(func(s *setting.Settings) { s.Meter = p })
}
