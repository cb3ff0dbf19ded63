//go:build !race

package mwtest

// raced reports that the race detector runs, under which miniredis takes half a minute for the table.
const raced = false
