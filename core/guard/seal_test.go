package guard

import (
	"bytes"
	"compress/flate"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/store"
)

func sealerOf(t testing.TB, keys ...SealKey) *sealer {
	t.Helper()
	s, err := newSealer(keys)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var (
	key1 = SealKey{ID: "1", Key: bytes.Repeat([]byte{1}, 16)}
	key2 = SealKey{ID: "2", Key: bytes.Repeat([]byte{2}, 32)}

	here = place{ref: store.OperationRef{Scope: "scope", ID: "id"}, status: 201}

	sampled = trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4, 5}, TraceFlags: trace.FlagsSampled, Remote: true,
	})
)

// orderList is JSON of n bytes, as an API answers it.
func orderList(n int) []byte {
	r := mathrand.New(mathrand.NewPCG(1, 2))
	b := []byte(`{"orders":[`)
	for len(b) < n {
		b = fmt.Appendf(b, `{"id":"ord_%016x","sku":"tea-%d","amount":%d,"currency":"EUR","created":"2026-11-%02dT10:%02d:%02dZ","paid":%t},`,
			r.Uint64(), r.IntN(50), r.IntN(100_000), r.IntN(30), r.IntN(60), r.IntN(60), r.IntN(2) == 0)
	}
	return b[:n]
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

const enough = 1 << 20

func TestSealRoundTrip(t *testing.T) {
	texts := []byte(base64.StdEncoding.EncodeToString(random(3000)))
	for name, data := range map[string][]byte{
		"nothing": {}, "little": []byte("charged"), "a KiB": orderList(1024), "JSON": orderList(4096), "large": orderList(200_000),
		"zeros": make([]byte, 5000), "random": random(5000), "base64": texts, "a head and random": append(orderList(400), random(5000)...),
	} {
		for _, keys := range [][]SealKey{{Unsealed()}, {key1}, {key2, key1, Unsealed()}} {
			for _, span := range []trace.SpanContext{{}, sampled} {
				s := sealerOf(t, keys...)
				b := s.seal(here, span, data)
				origin, got, err := s.open(here, b, len(data))
				if err != nil || !bytes.Equal(got, data) || !origin.Equal(span) {
					t.Fatalf("%s with %d keys: %d bytes, %v, %v", name, len(keys), len(got), origin, err)
				}
				if cap(b) > len(b)+len(b)/4+64 {
					t.Errorf("%s: %d bytes take %d", name, len(b), cap(b))
				}
				if s.first != "" && len(data) > 50 && bytes.Contains(b, data[:16]) {
					t.Errorf("%s is not sealed", name)
				}
				most := 1 + sealBytes + 2 + traceBytes + len(data)
				switch name {
				case "JSON", "large", "zeros":
					most = len(data) / 3
				case "base64":
					most = len(data) * 4 / 5
				}
				if len(b) > most {
					t.Errorf("%s: %d bytes are kept as %d", name, len(data), len(b))
				}
			}
		}
	}
}

// What is not worth its time is kept as it is.
func TestWhatIsNotDeflated(t *testing.T) {
	s := sealerOf(t, Unsealed())
	var packed bytes.Buffer
	w, _ := flate.NewWriter(&packed, flate.BestCompression)
	_, _ = w.Write(orderList(60_000))
	_ = w.Close()
	for name, c := range map[string]struct {
		data []byte
		want byte
	}{
		"a KiB":         {orderList(deflateAbove), 0},
		"above a KiB":   {orderList(deflateAbove + 1), deflated},
		"random":        {random(4096), 0},
		"deflated":      {packed.Bytes(), 0},
		"behind a head": {slices.Concat(orderList(500), packed.Bytes()), 0},
		"no smaller":    {slices.Concat(random(1500), []byte(base64.StdEncoding.EncodeToString(random(20))), random(1500)), 0},
	} {
		if b := s.seal(here, trace.SpanContext{}, c.data); b[0] != c.want || c.want == 0 && len(b) != len(c.data)+1 {
			t.Errorf("%s: the flags are %b, %d bytes are kept as %d", name, b[0], len(c.data), len(b))
		}
	}
	if dense([]byte(base64.StdEncoding.EncodeToString(random(1024)))) || !dense(random(1024)) {
		t.Error("base64 is dense, or random bytes are not")
	}
}

// The first key seals, and all of them open.
func TestKeysAreReplaced(t *testing.T) {
	lists := [][]SealKey{{Unsealed()}, {Unsealed(), key1}, {key1, Unsealed()}, {key1}, {key1, key2}, {key2, key1}, {key2}}
	data := []byte("charged")
	for i, list := range lists {
		s := sealerOf(t, list...)
		b := s.seal(here, trace.SpanContext{}, data)
		for j, other := range lists {
			_, got, err := sealerOf(t, other...).open(here, b, enough)
			if opens := slices.ContainsFunc(other, func(k SealKey) bool { return k.ID == list[0].ID }); opens != (err == nil) || opens && !bytes.Equal(got, data) {
				t.Errorf("sealed by list %d, list %d reads %q, %v", i, j, got, err)
			}
			if adjacent := j == i+1 || j == i-1; adjacent && err != nil {
				t.Errorf("lists %d and %d cannot run side by side: %v", i, j, err)
			}
		}
	}
	forged := SealKey{ID: "1", Key: bytes.Repeat([]byte{3}, 16)}
	if _, _, err := sealerOf(t, key1).open(here, sealerOf(t, forged).seal(here, trace.SpanContext{}, data), enough); err == nil {
		t.Error("another key with the ID opens it")
	}
}

// Sealed data opens in its place alone, and only unchanged.
func TestSealedDataIsBoundToItsPlace(t *testing.T) {
	s := sealerOf(t, key1, key2, Unsealed())
	data := orderList(2000)
	for _, from := range []place{here, {ref: here.ref, step: "charge"}} {
		b := s.seal(from, sampled, data)
		for _, to := range []place{
			{ref: here.ref, status: 200}, {ref: here.ref, step: "201"}, {ref: here.ref, step: "result"},
			{ref: store.OperationRef{Scope: "other", ID: "id"}, status: 201}, {ref: store.OperationRef{Scope: "scope", ID: "other"}, status: 201},
			{ref: store.OperationRef{ID: "id"}, step: "charge"}, {},
		} {
			if _, got, err := s.open(to, b, enough); err == nil {
				t.Errorf("data of %+v opens in %+v: %q", from, to, got)
			}
		}
		for i := range b {
			for _, bit := range []byte{1, 2, 4, 8, 0x80} {
				changed := bytes.Clone(b)
				changed[i] ^= bit
				// Without the flag, the sealed text is what is not sealed: a guard that reads that cannot tell.
				if i == 0 && bit == sealed {
					continue
				}
				if _, got, err := s.open(from, changed, enough); err == nil {
					t.Fatalf("with byte %d changed, it opens: %q", i, got)
				}
			}
			if _, _, err := s.open(from, b[:i], enough); err == nil {
				t.Fatalf("%d bytes of it open", i)
			}
		}
		if _, _, err := s.open(from, append(bytes.Clone(b), 0), enough); err == nil {
			t.Fatal("with a byte more, it opens")
		}
	}
}

// No record makes a reader allocate more than its limit.
func TestNoBombs(t *testing.T) {
	s := sealerOf(t, Unsealed())
	b := s.seal(here, trace.SpanContext{}, make([]byte, 1<<20))
	if len(b) > 8<<10 {
		t.Fatalf("zeros are kept as %d bytes", len(b))
	}
	if _, _, err := s.open(here, b, 1<<20-1); err == nil {
		t.Error("it is larger than the limit, and opens")
	}
	_, n := binary.Uvarint(b[1:])
	for name, size := range map[string]uint64{"smaller": 1000, "larger": 2 << 20, "huge": 1 << 63} {
		lying := append(binary.AppendUvarint([]byte{deflated}, size), b[1+n:]...)
		if _, got, err := s.open(here, lying, 4<<20); err == nil {
			t.Errorf("%s: it opens as %d bytes", name, len(got))
		}
	}
	if allocs := testing.AllocsPerRun(10, func() { _, _, _ = s.open(here, b, 1000) }); allocs > 4 {
		t.Errorf("%v allocations for what is too large", allocs)
	}
}

// FuzzOpen checks that the reader never panics, keeps its limit, and never returns other data than
// was sealed.
func FuzzOpen(f *testing.F) {
	strict, open := sealerOf(f, key1, key2), sealerOf(f, Unsealed(), key2, key1)
	known := [][]byte{{}, []byte("charged"), orderList(1500)}
	for _, data := range known {
		for _, s := range []*sealer{strict, open} {
			for _, span := range []trace.SpanContext{{}, sampled} {
				f.Add(s.seal(here, span, data), data, 201)
			}
		}
	}
	f.Add([]byte{}, []byte{}, 0)
	f.Add([]byte{traced, 1, 2}, []byte{}, 1)
	f.Add([]byte{sealed, 255}, []byte{}, 1)
	f.Add([]byte{deflated, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, []byte{}, 1)
	f.Fuzz(func(t *testing.T, b, data []byte, status int) {
		const limit = 4 << 10
		if _, got, err := open.open(here, b, limit); err == nil && len(got) > limit {
			t.Fatalf("%d bytes", len(got))
		}
		if _, got, err := strict.open(here, b, limit); err == nil &&
			!slices.ContainsFunc(known, func(data []byte) bool { return bytes.Equal(data, got) }) {
			t.Fatalf("%x was not sealed, and opens as %q", b, got)
		}
		there := place{ref: here.ref, status: status}
		for _, s := range []*sealer{strict, open} {
			_, got, err := s.open(there, s.seal(there, sampled, data), len(data))
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%x was read as %x, %v", data, got, err)
			}
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	data := orderList(4096)
	for name, keys := range map[string][]SealKey{"deflate": {Unsealed()}, "deflate and seal": {key2}} {
		s := sealerOf(b, keys...)
		kept := s.seal(here, sampled, data)
		b.Run(name+" 4 KiB", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.seal(here, sampled, data)
			}
			b.ReportMetric(float64(len(kept)), "B-kept")
		})
		b.Run("open "+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := s.open(here, kept, enough); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
