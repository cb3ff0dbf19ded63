package semaphore

import (
	"fmt"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Tier is the importance of a request, from which follows how much of the capacity it may use
// ([Semaphore.Tier]). The zero value is the highest one.
type Tier uint8

// The tiers, with the part of the capacity that each may use unless [Semaphore.SetTierShares]
// changes it. Any other value counts as Background.
const (
	Critical   Tier = iota // all of it
	Normal                 // 90 %
	Low                    // 70 %
	Background             // 50 %
)

// tierNames are the names of all tiers.
var tierNames = [...]string{Critical: "critical", Normal: "normal", Low: "low", Background: "background"}

// known returns the tier that a value counts as.
func (t Tier) known() Tier { return min(t, Background) }

// String returns the name of the tier in lower case.
func (t Tier) String() string { return tierNames[t.known()] }

// TierShares are the parts of the capacity that each tier may use. [Critical] may always use all of
// it.
type TierShares struct{ Normal, Low, Background float64 }

// check returns an error if a lower tier may use more than a higher one, or nothing.
func (s TierShares) check() error {
	if s.Normal <= 1 && s.Normal >= s.Low && s.Low >= s.Background && s.Background > 0 {
		return nil
	}
	return fmt.Errorf("semaphore: tier shares of normal %v, low %v and background %v: "+
		"each is more than 0, at most 1, and not more than that of the tier above", s.Normal, s.Low, s.Background)
}

// reserve returns how much of a capacity a tier leaves to those above it.
func (s TierShares) reserve(t Tier, capacity int) int {
	share := [...]float64{Critical: 1, Normal: s.Normal, Low: s.Low, Background: s.Background}[t]
	return shareOf(capacity, 1-share)
}

// tierTelemetry is the telemetry of a tier, made for its first variant.
type tierTelemetry struct {
	once sync.Once
	of   *telemetry.Tier
}

// Tier returns a Semaphore of the same permits, as [Semaphore.With] does, whose requests use only
// the tier's part of the capacity and are granted before those of lower tiers:
//
//	gate, err := semaphore.New(memory, "gate", 100)
//	low := gate.Tier(semaphore.Low) // 70 of them, and after Critical and Normal
//
// The rest is a reserve, which is rounded, follows the capacity, and differs between processes, as
// [WithReserveShare] says. It replaces a reserve of s. Of a small capacity, it may be 0: of 5,
// Normal leaves nothing to Critical, and of a capacity of 1 no tier does.
//
// Permits that are held, by whatever tier, count against all: a tier waits while others use its
// part. So Critical finds room for as much as no tier below it may use.
//
// Each call makes a new variant; keep it. An unknown tier is [Background]. The durations of its
// requests have the attribute lockkeeper.tier.
func (s *Semaphore) Tier(t Tier) *Semaphore {
	t = t.known()
	config := *s.config
	config.Reserve, config.ReserveShare, config.Tier = 0, 0, uint8(t)
	of := &s.tiers[t]
	of.once.Do(func() { of.of = s.pool.Telemetry.Tier(t.String()) })
	config.Tiered = of.of
	return &Semaphore{s.core, &config}
}

// SetTierShares changes the parts of the capacity that tiers may use, in this process, for the
// Semaphore and all its variants, existing ones included. Other processes keep theirs until they
// are set there, too. Waiting requests keep their places within their tier and use the new part;
// those with a larger weight return [ErrInvalidWeight]. Held permits are not affected.
//
// It returns an error, and changes nothing, unless each share is more than 0, at most 1, and not
// more than that of the tier above.
func (s *Semaphore) SetTierShares(shares TierShares) error {
	if err := shares.check(); err != nil {
		return err
	}
	s.changeRule(func(r *compiledRule) { r.Tiers = shares })
	return nil
}

func reserveOf(rule *compiledRule, config *lease.Config, capacity int) int {
	switch {
	case config.Tier > 0:
		return rule.Tiers.reserve(Tier(config.Tier), capacity)
	case config.ReserveShare > 0:
		return shareOf(capacity, config.ReserveShare)
	}
	return config.Reserve
}
