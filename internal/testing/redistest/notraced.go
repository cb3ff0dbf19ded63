//go:build !race

package redistest

// raced reports that the race detector runs, under which miniredis takes half a minute for the table.
const raced = false
