//go:build !linux

package testproc

// memory returns "": only Linux has a directory in memory.
func memory() string { return "" }
