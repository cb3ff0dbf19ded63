// Package core is the parent of the mechanisms (lock, semaphore, tokenbucket, guard) and of the stores
// that keep their state. It has the version of Lockkeeper.
package core

// Version is the version of Lockkeeper, by semantic versioning: that of all its modules. The
// instrumentation scopes of its telemetry have it.
const Version = "0.2.0"
