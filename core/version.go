package core

import "github.com/lockkeeper/lockkeeper/internal/telemetry"

// Version is the version of Lockkeeper, by semantic versioning. The instrumentation scopes of its telemetry
// have it.
const Version = telemetry.Version
