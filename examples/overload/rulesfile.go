package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// rulesFile is the document that sets the gate. People may edit it, too.
type rulesFile struct {
	path    string
	written []byte // by this program
}

// newRulesFile writes a document that lets all requests use all of the bound.
func newRulesFile(s scene) (*rulesFile, error) {
	dir, err := os.MkdirTemp("", "overload")
	if err != nil {
		return nil, err
	}
	f := &rulesFile{path: filepath.Join(dir, "rules.yaml")}
	text := fmt.Sprintf(`# Edit this file while the service runs. It is read five times a second.
version: 1
semaphores:
  gate: { min: %d, max: %d, target: %v, tiers: { normal: 100%%, low: 100%%, background: 100%% } }
`, s.floor(), s.ceiling(), s.target)
	return f, f.write([]byte(text))
}

// edit has low requests use 70 % of the bound, unless another person has edited the file.
func (f *rulesFile) edit() error {
	if text, err := f.text(); err != nil || !bytes.Equal(text, f.written) {
		return err
	}
	text := bytes.Replace(f.written, []byte("version: 1"), []byte("version: 2"), 1)
	return f.write(bytes.Replace(text, []byte("low: 100%, background: 100%"), []byte("low: 70%, background: 50%"), 1))
}

func (f *rulesFile) text() ([]byte, error) { return os.ReadFile(f.path) }

// write replaces the file at once, so that no reader gets half of it.
func (f *rulesFile) write(text []byte) error {
	f.written = text
	next := f.path + ".new"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, f.path)
}

func (f *rulesFile) remove() error { return os.RemoveAll(filepath.Dir(f.path)) }
