//go:build !race

package testpace

// Raced reports whether the race detector is on.
const Raced = false
