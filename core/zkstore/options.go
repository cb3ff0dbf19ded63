package zkstore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Option is an optional setting of [New].
type Option func(*config)

type config struct {
	session        time.Duration
	timeout        time.Duration
	chroot, prefix string
	auth           []credentials
	secret         []byte
	logger         *slog.Logger
	providers      telemetry.Providers
}

type credentials struct {
	scheme string
	auth   []byte
}

// WithSession sets the length of the session that the store asks for: 40 s by default, 1 s to 10 min.
// The server may grant less: by default it grants 2 to 20 ticks, which is 4 to 40 s. Holds and places
// of a process that dies end with its session. A hold's TTL, lock-delay included, is at most four
// fifths of the session.
func WithSession(d time.Duration) Option { return func(c *config) { c.session = d } }

// WithAuth adds credentials, such as the scheme "digest" with "user:password". The nodes that the
// store creates are then accessible to owners of the same credentials alone.
func WithAuth(scheme string, auth []byte) Option {
	return func(c *config) { c.auth = append(c.auth, credentials{scheme, append([]byte(nil), auth...)}) }
}

// WithChroot sets the node below which the store has everything, such as "/apps/shop": none by
// default. The store creates it if it has the right to.
func WithChroot(path string) Option { return func(c *config) { c.chroot = path } }

// WithPrefix sets the name of the store's node below the chroot, "lockkeeper" by default. A name has
// 1 to 64 letters, digits, hyphens and underscores. Stores with the same prefix share their state.
func WithPrefix(name string) Option { return func(c *config) { c.prefix = name } }

// WithSecret hashes keys by HMAC with this secret, so that a reader of the nodes cannot test guesses
// of user names. Every process needs the same secret. Without it containers have the keys of locks
// and semaphores in use as text. With it the Key of a store.LeaseState from ListLeases is the hash.
func WithSecret(secret []byte) Option {
	return func(c *config) { c.secret = append([]byte(nil), secret...) }
}

// WithTimeout sets the store's timeout: 1 s by default, 10 ms to 1 min. It is the longest time that a
// step of the server may take. If the server is silent for as long, the store connects to the next
// one.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithLogger sets the logger for outages and their end, lost sessions and misconfigurations:
// slog.Default() by default. Keys are never logged.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) { c.logger = cmp.Or(l, c.logger) }
}

// WithMeterProvider sets the provider of the store's metrics. The default, also for nil, is the
// global one.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

func (c *config) check() error {
	switch {
	case c.session < time.Second || c.session > 10*time.Minute:
		return fmt.Errorf("a session of %v is not between 1s and 10m", c.session)
	case c.timeout < 10*time.Millisecond || c.timeout > time.Minute:
		return fmt.Errorf("a timeout of %v is not between 10ms and 1m", c.timeout)
	case len(c.prefix) < 1 || len(c.prefix) > 64 || nodeID(c.prefix) != c.prefix:
		return fmt.Errorf("prefix %q is not 1 to 64 letters, digits, hyphens and underscores", c.prefix)
	}
	for _, a := range c.auth {
		if a.scheme == "" {
			return errors.New("WithAuth without a scheme")
		}
	}
	if c.chroot == "" {
		return nil
	}
	parts := strings.Split(c.chroot, "/")
	if parts[0] != "" {
		return fmt.Errorf("chroot %q does not begin with /", c.chroot)
	}
	for _, part := range parts[1:] {
		if part == "" || part == "." || part == ".." || strings.ContainsFunc(part, unprintable) {
			return fmt.Errorf("chroot %q is no path of nodes", c.chroot)
		}
	}
	return nil
}

func unprintable(r rune) bool { return r < 0x20 || r > 0x7e }
