//go:build !linux

package postgrestest

// memory returns "": only Linux has a directory in memory.
func memory() string { return "" }
