// Package rules has a document set how much limiters and semaphores admit, while the service runs.
//
// Code decides who is limited by what: the middleware, its key and its order. A document decides how
// much, by the names of the mechanisms, and nothing else: no promise that a lock or a guard gives is
// in it. docs/rules.md describes its fields.
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
// [Check] finds all that is wrong with a document.
package rules
