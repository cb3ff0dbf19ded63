package httpmw

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
)

// The status that counts is the one that the client gets, also after a file that cannot be read.
func TestStatusOfAFile(t *testing.T) {
	unreadable := iotest.ErrReader(errors.New("unreadable"))
	for name, c := range map[string]struct {
		file io.Reader
		want int
	}{
		"a file":                    {strings.NewReader("file"), http.StatusOK},
		"an empty one":              {strings.NewReader(""), http.StatusOK},
		"one that fails at once":    {unreadable, http.StatusUnauthorized},
		"one that fails in between": {io.MultiReader(strings.NewReader("first"), unreadable), http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			var observed int
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				o := Observer{ResponseWriter: w}
				if _, err := o.ReadFrom(c.file); err != nil && !o.Begun() {
					o.WriteHeader(http.StatusUnauthorized)
				}
				observed = o.Status()
			}))
			resp, err := http.Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			server.Close()
			if resp.StatusCode != c.want || observed != c.want {
				t.Errorf("%d, and %d was observed; want %d", resp.StatusCode, observed, c.want)
			}
		})
	}
}
