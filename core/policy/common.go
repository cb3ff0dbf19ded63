package policy

import (
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"unicode"

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
// Denial.Type: the reason is appended, so base ends in a slash, a # or the like. The application
// then has a page for each, or one with a section for each. Without it the types are links to this
// module's own page. Types that are registered at IANA stay as they are. It panics if base is no
// absolute URL, or ends in a letter or a digit.
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
		return err
	case u.Scheme == "" || u.Host == "":
		return fmt.Errorf("%q is no absolute URL", base)
	case strings.ContainsFunc(base, func(r rune) bool { return r <= ' ' || r > '~' || r == '<' || r == '>' || r == '"' }):
		return fmt.Errorf("%q cannot stand in a header", base)
	}
	if last := rune(base[len(base)-1]); unicode.IsLetter(last) || unicode.IsDigit(last) {
		return fmt.Errorf("%q runs into the reason that is appended", base)
	}
	return nil
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
