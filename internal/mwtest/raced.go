//go:build race

package mwtest

const raced = true
