package clientip

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestDirectBehindAProxyIsLoggedOnce(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var log bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))

	for _, field := range []string{"", "X-Forwarded-For", "Forwarded"} {
		warned.Store(false)
		log.Reset()
		for range 3 {
			r := httptest.NewRequest("GET", "/", nil)
			if field != "" {
				r.Header.Set(field, "198.51.100.1")
			}
			for _, resolver := range []Resolver{TrustedHops(1), Direct()} {
				if _, err := resolver.Key(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		if lines := strings.Count(log.String(), "clientip.TrustedProxies"); lines != min(len(field), 1) {
			t.Errorf("with %q: %d lines\n%s", field, lines, &log)
		}
	}
}
