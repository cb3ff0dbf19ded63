package main

import (
	"os"
	"strings"
	"testing"
)

// The README shows this program as it is.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(program), "// Command quickstart is the program in the README.\n")
	if !strings.Contains(string(readme), "```go\n"+shown+"```") {
		t.Error("the README's program and examples/quickstart/main.go differ")
	}
}
