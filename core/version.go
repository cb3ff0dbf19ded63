// Package core is the parent of the mechanisms (lock, semaphore, tokenbucket, guard) and of the stores
// that keep their state. It has the version of Lockkeeper.
package core

import "github.com/lockkeeper/lockkeeper/internal/telemetry"

// Version is the version of Lockkeeper, by semantic versioning. The instrumentation scopes of its telemetry
// have it.
const Version = telemetry.Version
