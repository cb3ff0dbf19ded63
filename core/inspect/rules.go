package inspect

import (
	"context"
	"time"
)

// Rules is the document with rules that a process follows, as the Inspect of a *rules.Rules returns
// it (package core/rules, a module of its own).
type Rules struct {
	Source, Name string // file, store or func; the file's or the document's name
	State        string // current, stale or none
	Since        time.Time
	Version      string // that the document in force gives itself
	Revision     int64  // of the document in force in the store; 0 for other sources
	Hash         string
	At           time.Time    // since when it is in force in this process
	Document     []byte       // in force, keys included
	Refused      []byte       // the document of the source if it has errors
	Errors       []RulesError // why the rules are stale
}

// RulesInspector is a *rules.Rules.
type RulesInspector interface {
	Inspect() Rules
	// InspectHistory returns the last versions of the document, the newest first: none if its source
	// is no store. The error is the store's.
	InspectHistory(context.Context) ([]RulesVersion, error)
}

// RulesVersion is a version of a document in a store, without its text.
type RulesVersion struct {
	Number  int64
	Hash    string
	Bytes   int
	By, Why string
	At      time.Time // by the clock of the process that has pushed it; zero if none has
}

// RulesError is an error of a document with rules. An error of the source has only a text.
type RulesError struct {
	Line, Column int
	Path, Text   string
}
