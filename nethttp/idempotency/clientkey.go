package idempotency

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

const (
	keyField      = "Idempotency-Key"
	replayedField = "Idempotency-Replayed"
)

type (
	contextKey struct{} // of the idempotency key
	triesKey   struct{}
)

// WithKey returns a context whose requests [Transport] sends with this idempotency key, 1 to 255
// printable ASCII characters. It is for one request and its repeats: the server refuses the second
// of two different requests with the same key. A caller that repeats a request itself, such as a
// job that runs again after a crash, has to send the same key.
//
// GET, HEAD, OPTIONS and TRACE are sent without it. A request that has the header field
// Idempotency-Key is sent with that. A request with an improper key is not sent, and its error says
// so.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// Tries returns how often [Transport] has sent the request of a response; after a redirect, the
// last request. It is 0 if the response did not come by a Transport.
func Tries(resp *http.Response) int {
	if resp.Request == nil {
		return 0
	}
	n, _ := resp.Request.Context().Value(triesKey{}).(int)
	return n
}

// Replayed reports whether a response is the stored answer to an earlier request with the same key.
func Replayed(resp *http.Response) bool { return resp.Header.Get(replayedField) == "true" }

// keyOf returns the values of the Idempotency-Key of a request to send.
func keyOf(r *http.Request) ([]string, error) {
	elsewhere := redirectedElsewhere(r)
	if set, ok := r.Header[keyField]; ok && (len(set) == 0 || !elsewhere) {
		return set, nil
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return nil, nil
	}
	if from := r.Response; from != nil && from.Request != nil && !elsewhere {
		if sent := from.Request.Header[keyField]; len(sent) > 0 {
			return sent, nil
		}
	}
	key, ok := r.Context().Value(contextKey{}).(string)
	if !ok {
		if r.Method != http.MethodPost && r.Method != http.MethodPatch {
			return nil, nil
		}
		key = naming.NewID()
	}
	if elsewhere {
		key = naming.NewID()
	}
	if _, denial := middleware.CheckIdempotencyKey(key); denial != nil {
		return nil, errors.New("idempotency: Transport: the key of WithKey is not 1 to 255 printable ASCII characters")
	}
	text, err := httpsfv.Marshal(httpsfv.NewItem(key))
	return []string{text}, err
}

// redirectedElsewhere reports whether a server has redirected a request to a host that is neither
// its own nor within its domain: net/http keeps credentials from such a host.
func redirectedElsewhere(r *http.Request) bool {
	if r.Response == nil || r.Response.Request == nil || r.URL == nil {
		return false
	}
	from, to := strings.ToLower(r.Response.Request.URL.Hostname()), strings.ToLower(r.URL.Hostname())
	return to != from && !strings.HasSuffix(to, "."+from)
}

// repeatable reports whether a request with this key may be sent twice.
func repeatable(r *http.Request, key []string) bool {
	if len(key) > 0 {
		return true
	}
	if _, off := r.Header[keyField]; off {
		return false
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// headerWith returns a copy of a header with a key. Without one the copy has no such field: with an
// empty one, net/http may send the request twice.
func headerWith(h http.Header, key []string) http.Header {
	if h = h.Clone(); h == nil {
		h = make(http.Header)
	}
	if len(key) == 0 {
		delete(h, keyField)
	} else {
		h[keyField] = slices.Clone(key)
	}
	return h
}
