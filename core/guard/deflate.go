package guard

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

// deflateAbove is the size above which data is deflated: smaller data does not save enough.
const deflateAbove = 1 << 10

// deflaters deflate and inflate. A writer takes 1.2 MB and a reader 40 KB, so there are about as
// many as processors.
type deflaters struct {
	writers, readers sync.Pool // of *deflater and of *inflater
}

type deflater struct {
	flate *flate.Writer
	out   limited
}

type inflater struct {
	flate io.ReadCloser
	in    bytes.Reader
}

// limited appends to b, up to max bytes in all.
type limited struct {
	b   []byte
	max int
}

var errLarger = errors.New("guard: deflated data is not smaller")

func (l *limited) Write(p []byte) (int, error) {
	if len(l.b)+len(p) > l.max {
		return 0, errLarger
	}
	l.b = append(l.b, p...)
	return len(p), nil
}

// deflate appends deflated data to b. It returns false if the data is small, or would not become
// smaller.
func (d *deflaters) deflate(b, data []byte) ([]byte, bool) {
	if len(data) <= deflateAbove || dense(data) {
		return b, false
	}
	w, ok := d.writers.Get().(*deflater)
	if !ok {
		w = new(deflater)
		w.flate, _ = flate.NewWriter(nil, flate.BestSpeed) // fails for an invalid level alone
	}
	defer d.writers.Put(w)
	w.out = limited{b, len(b) + len(data) - binary.MaxVarintLen32} // the head has the size
	w.flate.Reset(&w.out)
	_, err := w.flate.Write(data)
	if err == nil {
		err = w.flate.Close()
	}
	b = w.out.b
	w.out = limited{}
	return b, err == nil
}

// dense reports whether data looks compressed or encrypted: whether the byte values in its middle
// KiB, where images and archives have no header, have similar frequencies.
func dense(data []byte) bool {
	sample := data[(len(data)-deflateAbove)/2:][:deflateAbove]
	var count [256]int
	for _, c := range sample {
		count[c]++
	}
	squares := 0
	for _, n := range count {
		squares += n * n
	}
	// Random bytes have 5,116 on average, base64 has 17,400, and JSON 50,000.
	return squares < 8<<10
}

// inflate returns the data of this size that was deflated.
func (d *deflaters) inflate(b []byte, size int) ([]byte, error) {
	r, ok := d.readers.Get().(*inflater)
	if !ok {
		r = &inflater{flate: flate.NewReader(nil)}
	}
	defer d.readers.Put(r)
	r.in.Reset(b)
	defer r.in.Reset(nil)
	if err := r.flate.(flate.Resetter).Reset(&r.in, nil); err != nil {
		return nil, err
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(r.flate, data); err != nil {
		return nil, errDamaged
	}
	var more [1]byte
	if n, err := r.flate.Read(more[:]); n > 0 || err != io.EOF || r.in.Len() > 0 {
		return nil, errDamaged
	}
	return data, nil
}
