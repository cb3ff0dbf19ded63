package nethttp_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// A refused upload is answered before any of it is sent: the server finds in its request whether
// the client waits for leave to send the body, and how much of it is missing.
func TestARefusedUploadIsNotRead(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	limiter, err := tokenbucket.New(st, "uploads", tokenbucket.PerHour(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.Allow(t.Context(), "all"); err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]nethttp.KeyFunc{
		"a key function that leaves the body alone": func(*http.Request) (string, error) { return "all", nil },
		"one that reads a part of it": func(r *http.Request) (string, error) {
			_, err := r.Body.Read(make([]byte, 1))
			return "all", err
		},
	} {
		server := httptest.NewServer(ratelimit.New(limiter, key)(http.NotFoundHandler()))
		t.Cleanup(server.Close)
		for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
			reads := name == "one that reads a part of it"
			if reads && expect != "" { // it gives leave
				continue
			}
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: shop\r\n%sContent-Length: 1000000\r\n\r\n", expect)
			if reads {
				_, _ = conn.Write([]byte("x"))
			}
			_ = conn.SetReadDeadline(time.Now().Add(testpace.Scale(5 * time.Second)))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Errorf("%s, %q: no answer: %v", name, expect, err)
			} else if _ = resp.Body.Close(); resp.StatusCode != http.StatusTooManyRequests {
				t.Errorf("%s, %q: %s", name, expect, resp.Status)
			}
			_ = conn.Close()
		}
	}
}
