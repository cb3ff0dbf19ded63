package mwtest

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
)

// Journal records log lines.
type Journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (j *Journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// Logger returns what logs into the journal.
func (j *Journal) Logger() *slog.Logger { return slog.New(slog.NewJSONHandler(j, nil)) }

// Records returns what was logged at WARN and above, in order, but for the errors of requests that a
// framework without a logger of its own logs by that of the middleware.
func (j *Journal) Records(t testing.TB) (records []map[string]any) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range bytes.Lines(j.text.Bytes()) {
		var r map[string]any
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		if _, reports := r["middleware"]; reports {
			continue
		}
		if r["level"] == "WARN" || r["level"] == "ERROR" {
			records = append(records, r)
		}
	}
	return records
}
