package store

import "context"

// Checker is a store that knows how it, or its server, may be set up in ways that weaken promises.
type Checker interface {
	// Check returns what weakens a promise, and how to mend that: none if nothing does. Call it
	// when a service starts, and log the findings. What the server does not let the store's user
	// read is not checked. If the server cannot be reached, or the store does not work with it at
	// all, the error matches ErrUnavailable, and there are no findings.
	Check(ctx context.Context) ([]Finding, error)
}

// Finding is something that weakens a promise of a store.
type Finding struct {
	Found   string // what is so, and on which server
	Weakens string // what may happen because of it
	Remedy  string // what to do about it
	// Refused is the cause of the errors that steps return because of it, or "" if the store works
	// nevertheless.
	Refused Cause
}

// String returns the finding as a sentence.
func (f Finding) String() string { return f.Found + ": " + f.Weakens + ". " + f.Remedy + "." }
