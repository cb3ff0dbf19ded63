//go:build race

package redistest

const raced = true
