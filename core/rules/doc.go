// Package rules has a document set how much limiters and semaphores admit, while the service runs.
//
// Code decides who is limited by what: the middleware, its key and its order. A document decides
// how much, by the names of the mechanisms, and nothing else: no promise that a lock or a guard
// gives is in it.
//
//	limits:
//	  api:
//	    limit: 100/1m burst=20
//	    overrides:
//	      - { keys: [team-7, "partner-*"], limit: 1000/1m }
//	  signup: { mode: shadow, limit: 5/1h }
//	semaphores:
//	  reports: { capacity: 4 }
//
// [Open] puts the document of a source in force, and follows it:
//
//	r, err := rules.Open(ctx, rules.File("limits.yaml"), rules.For(api, signup, reports))
//	if err != nil {
//		return err // all errors of the document, with their places
//	}
//	defer r.Close()
//
// The source is a [File], a [Func], or a document of a [Store], which [Push] changes. A document is
// in force as a whole or not at all; a bad one leaves the last good one in force, which
// [Rules.Applied], a metric and the log say. Settings that a document leaves out are the program's.
//
// docs/rules.md describes every field and every outcome, and schema.json the document for editors.
package rules
