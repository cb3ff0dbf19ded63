package main

import (
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
)

// act is a process of the service with one gate. It has one phase, or a second one after an edit of
// its rules.
type act struct {
	name    string // on the page's buttons
	gate    func(v *service) (*semaphore.Semaphore, error)
	options []policy.ConcurrencyOption
	edited  bool // has rules, and a phase after their edit
	phases  []phase
}

// phase is a time with one gate.
type phase struct {
	Name  string `json:"name"`
	About string `json:"about"`
	Rows  []row  `json:"rows"` // one a second
	// Settled is the second half of the phase, a second on average; nil before the phase has ended.
	Settled *row `json:"settled"`
}

func acts() []act {
	fixed := func(v *service) (*semaphore.Semaphore, error) { return fixed(v.memory, v.bound()) }
	adaptive := func(v *service) (*semaphore.Semaphore, error) {
		return adaptive(v.memory, v.target, v.floor(), v.ceiling())
	}
	tiers := []policy.ConcurrencyOption{concurrency.Tiers(tierOf)}
	return []act{
		{name: "none", phases: []phase{
			{Name: "no gate", About: "Every request is let in."},
		}},
		{name: "static", gate: fixed, phases: []phase{
			{Name: "static", About: "As many are let in as can be answered within the target, by Little's law."},
		}},
		{name: "tiers", gate: fixed, options: tiers, phases: []phase{
			{Name: "tiers", About: "The same bound, of which searches may use 70 %."},
		}},
		{name: "adaptive", gate: adaptive, options: tiers, phases: []phase{
			{Name: "adaptive", About: "The same tiers, and a bound that follows from the target alone."},
		}},
		{name: "rules", gate: adaptive, options: tiers, edited: true, phases: []phase{
			{Name: "rules", About: "rules.yaml lets searches use all of the bound."},
			{Name: "rules, edited", About: "The file is edited while the service runs: searches may use 70 %."},
		}},
	}
}
