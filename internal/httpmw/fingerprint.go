package httpmw

import (
	"cmp"
	"crypto/sha256"
	"net/http"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/base/textlist"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// conditions are the fields that change a handler's answer by their definition.
var conditions = []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range"}

// hostOf returns the host of a request's service.
func hostOf(r *http.Request, s *setting.Settings) string {
	host := setting.Host(r.Host)
	return cmp.Or(s.Services[host], host)
}

// fingerprint returns a digest of the parts that identify a request. An error is of the
// application's function, or means that there is no room for the function's copy of the body.
func fingerprint(r *http.Request, b *body, s *setting.Settings) ([]byte, error) {
	var most [512]byte
	head := textlist.Append(most[:0], r.Method, hostOf(r, s), r.URL.EscapedPath())
	if s.KeyAlone {
		sum := sha256.Sum256(head)
		return sum[:], nil
	}
	head = textlist.Append(head, r.URL.RawQuery, r.Header.Get("Content-Type"))
	for _, name := range conditions {
		head = textlist.Append(head, strings.Join(r.Header[name], ", "))
	}
	h := sha256.New()
	_, _ = h.Write(head)
	if s.Fingerprint == nil {
		for _, piece := range b.pieces {
			_, _ = h.Write(piece)
		}
		return h.Sum(nil), nil
	}
	own, err := ownFingerprint(r, b, s)
	_, _ = h.Write(own)
	return h.Sum(nil), err
}

// ownFingerprint returns the application's fingerprint of a body. The function gets a copy.
func ownFingerprint(r *http.Request, b *body, s *setting.Settings) (own []byte, err error) {
	if err := b.take(b.size); err != nil {
		return nil, err
	}
	defer b.give(b.size)
	text := make([]byte, 0, b.size)
	for _, piece := range b.pieces {
		text = append(text, piece...)
	}
	show(r, b, func(r *http.Request) { own, err = s.Fingerprint(r, text) })
	return own, err
}
