package httpmw

import (
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// unbounded is a body without a bound on the sum of bodies.
func unbounded() *body { return &body{budget: &budget{max: 1 << 40}} }

// A request that is repeated after an update of the server is no mismatch.
func TestFingerprintIsStable(t *testing.T) {
	with := httptest.NewRequest("POST", "/pay%20now?a=1&b=", strings.NewReader(`{"amount":450}`))
	with.Header.Set("Content-Type", "application/json")
	without := httptest.NewRequest("DELETE", "/order/1", nil)
	unsized := httptest.NewRequest("POST", "/pay", struct{ *strings.Reader }{strings.NewReader(strings.Repeat("long ", 1000))})
	unsized.ContentLength = -1
	conditional := httptest.NewRequest("PUT", "/order/1", nil)
	conditional.Header.Set("If-Match", `"v1"`)
	conditional.Header.Set("Range", "bytes=0-9")
	want := []string{
		"6e6d7504d2b8be735d6ac9832674620e31835c64a9d85a89a762ea8087e5b7bc",
		"1540097718f1ec8e257b197fe11df446afc82bf955ee592560794d0c022c26c7",
		"28a79b960c3297c93d36afa12eb51c781f494aa8b5aa999052bc2966426a4345",
		"26501153a8ccaae1d72116119e96e24e8f07c05287b9cb8105be314dcc59f1ee",
	}
	for i, r := range []*http.Request{with, without, unsized, conditional} {
		b := unbounded()
		err := b.read(r, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		got, err := fingerprint(r, b, &setting.Settings{})
		if err != nil || hex.EncodeToString(got) != want[i] {
			t.Errorf("%s %s: %x, %v, want %s", r.Method, r.URL, got, err, want[i])
		}
	}
}

// A body is read as it is, in any pieces, and takes the memory that is accounted for.
func TestReadBody(t *testing.T) {
	text := make([]byte, 1<<20)
	for i := range text {
		text[i] = byte(rand.Int())
	}
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"all at once":       func(r io.Reader) io.Reader { return r },
		"a byte at a time":  iotest.OneByteReader,
		"half of it":        iotest.HalfReader,
		"with the end":      iotest.DataErrReader,
		"nothing sometimes": func(r io.Reader) io.Reader { return &hesitant{r: r} },
	} {
		for _, size := range []int{0, 1, 511, 1023, 1024, 1025, 5000, 64 << 10, 1<<20 - 1, 1 << 20} {
			for announced, length := range map[string]int64{"announced": int64(size), "not announced": -1, "wrongly announced": int64(size / 2)} {
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				r.Body = io.NopCloser(wrap(strings.NewReader(string(text[:size]))))
				r.ContentLength = length
				b := unbounded()
				if err := b.read(r, 1<<20); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					got, err := io.ReadAll(withBody(t.Context(), r, b).Body)
					if err != nil || string(got) != string(text[:size]) {
						t.Fatalf("%s, %d bytes, %s: read %d bytes, %v", name, size, announced, len(got), err)
					}
				}
				memory, counted := int64(0), int64(0)
				for _, piece := range b.pieces {
					memory += int64(cap(piece))
					if memory > free {
						counted += int64(cap(piece))
					}
				}
				if counted != b.taken || b.taken != b.budget.used.Load() {
					t.Errorf("%d bytes take %d, of which %d are counted, want %d", size, memory, b.taken, counted)
				}
				if length == int64(size) && memory != length {
					t.Errorf("%d bytes that were announced take %d", size, memory)
				}
				b.release()
				if used := b.budget.used.Load(); used != 0 {
					t.Errorf("%d bytes are left", used)
				}
			}
		}
	}
	for name, c := range map[string]struct {
		body io.Reader
		want error
	}{
		"too large": {strings.NewReader(string(text[:101])), errBodyTooLarge},
		"broken":    {io.MultiReader(strings.NewReader("x"), iotest.ErrReader(io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", c.body)
		b := unbounded()
		if err := b.read(r, 100); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// hesitant returns no bytes and no error every other time.
type hesitant struct {
	r io.Reader
	n int
}

func (h *hesitant) Read(p []byte) (int, error) {
	if h.n++; h.n%2 == 0 {
		return 0, nil
	}
	return h.r.Read(p)
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
