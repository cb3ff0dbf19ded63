package store

import "context"

// Checker is a store that can find settings, its own or its server's, that weaken promises.
type Checker interface {
	// Check returns the settings that weaken a promise, with remedies; none if nothing does. Call it
	// when a service starts, and log the findings. It skips settings that the server does not let the
	// store's user read. If the server cannot be reached, or the store does not work with it at all,
	// the error matches ErrUnavailable, and there are no findings.
	Check(ctx context.Context) ([]Finding, error)
}

// Finding is something that weakens a promise of a store.
type Finding struct {
	Found   string // the setting or state, and on which server
	Weakens string // the possible consequence
	Remedy  string // the fix
	// Refused is the cause of the errors that steps return because of it, or "" if the store works
	// nevertheless.
	Refused Cause
}

// String returns the finding as a sentence.
func (f Finding) String() string { return f.Found + ": " + f.Weakens + ". " + f.Remedy + "." }
