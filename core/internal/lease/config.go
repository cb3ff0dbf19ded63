package lease

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Settings are the settings of a lease. They are comparable: a hold is handed on only between
// callers with equal settings.
type Settings struct {
	TTL     time.Duration
	Renew   bool
	MaxHold time.Duration
	Delay   time.Duration // after an expiry, how long the store still counts the hold
	Fair    bool          // nothing is handed on, and every request has its own place in the store
	Reserve int
	// ReserveShare is the part of the capacity that a request leaves to others instead of Reserve.
	ReserveShare float64
	Tier         uint8  // of a semaphore; it decides about the reserve unless it is 0
	Holder       string // the label
}

// Adaptive has the settings of a semaphore whose capacity follows the time for which it is held.
type Adaptive struct {
	Target         time.Duration
	Floor, Ceiling int
}

// Config is the configuration of a mechanism, or of a variant of it.
type Config struct {
	Settings
	MaxWaiting int
	CapacityOf func(key string) int
	Adaptive   *Adaptive       // of New alone; nil without it
	Tiered     *telemetry.Tier // nil for requests without a tier
	// ReserveGiven and ShareGiven mean that an option has set Reserve, or ReserveShare.
	ReserveGiven, ShareGiven bool

	// Of New alone.
	Providers telemetry.Providers
	Logger    *slog.Logger
	OfNew     bool // one of them was given
}

// maxLabel is the largest label of a holder, in bytes.
const maxLabel = 256

// NewConfig returns the configuration of a new mechanism. other has the defaults that mechanisms do
// not share.
func NewConfig[O ~func(*Config)](pkg string, st store.Leases, name string, other Config, opts []O) (*Config, error) {
	if naming.IsNil(st) {
		return nil, errors.New(pkg + ": New: nil store")
	}
	if err := naming.CheckName(name); err != nil {
		return nil, fmt.Errorf("%s: New: %w", pkg, err)
	}
	c := other
	c.TTL, c.Renew, c.Holder, c.Logger = 30*time.Second, true, naming.Process(), slog.Default()
	return with(pkg+": New", c, opts)
}

// Vary returns the configuration of a variant of a mechanism.
func Vary[O ~func(*Config)](pkg string, c *Config, opts []O) (*Config, error) {
	base := *c
	base.OfNew, base.ReserveGiven, base.ShareGiven, base.Adaptive = false, false, false, nil
	varied, err := with(pkg+": With", base, opts)
	if err == nil && varied.OfNew {
		return nil, errors.New(pkg + ": With: WithMeterProvider, WithTracerProvider and WithLogger are options of New alone")
	}
	return varied, err
}

func with[O ~func(*Config)](call string, c Config, opts []O) (*Config, error) {
	option.Apply(&c, opts)
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	return &c, nil
}

func (c *Config) check() error {
	switch {
	case c.TTL < 10*time.Millisecond || c.TTL > 24*time.Hour:
		return fmt.Errorf("a lease of %v is not between 10ms and 24h", c.TTL)
	case c.MaxHold != 0 && c.MaxHold < time.Millisecond:
		return fmt.Errorf("a maximum hold of %v is neither 0 nor at least 1ms", c.MaxHold)
	case c.Delay != 0 && (c.Delay < time.Millisecond || c.Delay > time.Hour):
		return fmt.Errorf("a lock-delay of %v is neither 0 nor between 1ms and 1h", c.Delay)
	case len(c.Holder) > maxLabel:
		return fmt.Errorf("a holder label of %d bytes, at most %d are allowed", len(c.Holder), maxLabel)
	case c.MaxWaiting < 0:
		return fmt.Errorf("a maximum of %d waiters is negative", c.MaxWaiting)
	case c.Reserve < 0 || c.Reserve >= store.MaxCapacity:
		return fmt.Errorf("a reserve of %d is not between 0 and the capacity less 1", c.Reserve)
	case !(c.ReserveShare >= 0 && c.ReserveShare < 1): // nor NaN
		return fmt.Errorf("a reserve of a share of %v is not at least 0 and less than 1", c.ReserveShare)
	case c.ReserveGiven && c.ShareGiven:
		return errors.New("WithReserve and WithReserveShare exclude each other")
	}
	return nil
}

// Text returns the settings that mechanisms of one name must have in common.
func (c *Config) Text() string {
	return fmt.Sprintf("ttl=%v renewal=%t max_hold=%v", c.TTL, c.Renew, c.MaxHold)
}
