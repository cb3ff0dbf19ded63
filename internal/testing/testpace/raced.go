//go:build race

package testpace

// Raced reports whether the race detector is on. miniredis interprets Lua in Go: under the race
// detector that takes five times as long, and finds nothing in our code that a real server does not.
const Raced = true
