package httpmw

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// request returns a request with a body of a length, and another Content-Length.
func request(length int, announced int64) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", length)))
	r.ContentLength = announced
	return r
}

// The handler reads what was read early, then the rest, and any error.
func TestEarlyBody(t *testing.T) {
	for name, c := range map[string]struct {
		r     *http.Request
		taken int64
		want  int
	}{
		"small":                  {request(100, 100), 100, 100},
		"none":                   {request(0, 0), 0, 0},
		"of unknown length":      {request(100, -1), 0, 100},
		"large":                  {request(maxEarly+1, maxEarly+1), 0, maxEarly + 1},
		"longer than announced":  {request(maxEarly, 10), 10, maxEarly},
		"shorter than announced": {request(10, 1000), 1000, 10},
	} {
		t.Run(name, func(t *testing.T) {
			b := budget{max: maxEarlyBodies}
			if got := b.readEarly(c.r); got != c.taken || b.used.Load() != c.taken {
				t.Errorf("took %d, and %d in all, want %d", got, b.used.Load(), c.taken)
			}
			body, err := io.ReadAll(c.r.Body)
			if err != nil || len(body) != c.want {
				t.Errorf("the handler reads %d bytes, %v, want %d", len(body), err, c.want)
			}
		})
	}
	t.Run("with an error", func(t *testing.T) {
		b := budget{max: maxEarlyBodies}
		r := request(100, 100)
		r.Body = http.MaxBytesReader(httptest.NewRecorder(), r.Body, 10)
		b.readEarly(r)
		body, err := io.ReadAll(r.Body)
		var tooLarge *http.MaxBytesError
		if len(body) != 10 || !errors.As(err, &tooLarge) {
			t.Errorf("the handler reads %d bytes, %v", len(body), err)
		}
	})
}

// The sum of all early bodies is bounded; others are not read early.
func TestEarlyBodiesAreBounded(t *testing.T) {
	b := budget{max: maxEarlyBodies}
	read := 0
	for range 2 * maxEarlyBodies / maxEarly {
		r := request(maxEarly, maxEarly)
		if b.readEarly(r) != 0 {
			read++
		}
		if body, err := io.ReadAll(r.Body); err != nil || len(body) != maxEarly {
			t.Fatalf("the handler reads %d bytes, %v", len(body), err)
		}
	}
	if read != maxEarlyBodies/maxEarly || b.used.Load() != maxEarlyBodies {
		t.Errorf("%d were read, of %d bytes", read, b.used.Load())
	}
}
