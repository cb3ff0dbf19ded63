package httpmw

import (
	"encoding/binary"
	"errors"
	"net/http"
	"strconv"

	"github.com/lockkeeper/lockkeeper/internal/middleware/encoding"
)

// response is an answer without its status: the handler's changes to the header, the body, and the
// trailers.
type response struct {
	header, trailer []change
	body            []byte
}

// send sends the answer. In a framework that defers the header, outer middleware may still change
// an answer that is not settled and has no body.
func (r response) send(w http.ResponseWriter, status int, settled bool) error {
	apply(w.Header(), r.header)
	w.WriteHeader(status)
	err := r.sendBody(w)
	if len(r.body) == 0 && settled {
		sendHeader(w)
	}
	apply(w.Header(), r.trailer)
	return err
}

// sendBody sends the body. The part beyond the Content-Length is a separate write, since net/http
// refuses a write that exceeds it as a whole.
func (r response) sendBody(w http.ResponseWriter) error {
	if len(r.body) == 0 {
		return nil
	}
	body := r.body
	if text := w.Header().Get("Content-Length"); text != "" {
		length, err := strconv.Atoi(text)
		if err == nil && length > 0 && length < len(body) {
			if _, err := w.Write(body[:length]); err != nil {
				return err
			}
			body = body[length:]
		}
	}
	_, err := w.Write(body)
	return err
}

// sendHeader sends the header of a writer that defers it, such as gin's.
func sendHeader(w http.ResponseWriter) {
	if noting, ok := w.(interface{ WriteHeaderNow() }); ok {
		noting.WriteHeaderNow()
	}
}

// validStatus reports whether net/http sends answers with a status.
func validStatus(status int) bool { return status >= 100 && status <= 999 }

// The encoding of a response: a version, the changes to the header, the trailers, and the body.
// Changes begin with their number. Each change has the name, the number of values plus one, and the
// values; zero stands for a deleted field.
const responseVersion = 2

var errDamaged = errors.New("idempotency: the kept response is damaged")

// encode returns the part of the response that a replay repeats.
func (r response) encode(f fields) []byte {
	header, trailer := f.lasting(r.header), f.lasting(r.trailer)
	b := make([]byte, 0, 16+sizeOf(header)+sizeOf(trailer)+len(r.body))
	b = append(b, responseVersion)
	b = appendChanges(b, header)
	b = appendChanges(b, trailer)
	return append(b, r.body...)
}

func decodeResponse(b []byte) (response, error) {
	if len(b) == 0 || b[0] != responseVersion {
		return response{}, errDamaged
	}
	r := encoding.Reader{Left: b[1:]}
	header, trailer := readChanges(&r), readChanges(&r)
	if r.Failed {
		return response{}, errDamaged
	}
	return response{header, trailer, r.Left}, nil
}

// sizeOf estimates the length of an encoding.
func sizeOf(list []change) int {
	size := 0
	for _, c := range list {
		size += len(c.name) + 4
		for _, v := range c.values {
			size += len(v) + 2
		}
	}
	return size
}

func appendChanges(b []byte, list []change) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, c := range list {
		b = encoding.AppendText(b, c.name)
		if c.deleted {
			b = append(b, 0)
			continue
		}
		b = binary.AppendUvarint(b, uint64(len(c.values))+1)
		for _, v := range c.values {
			b = encoding.AppendText(b, v)
		}
	}
	return b
}

func readChanges(r *encoding.Reader) (list []change) {
	for count := r.Number(); count > 0 && !r.Failed; count-- {
		name, values := r.Text(), r.Number()
		c := change{name: name, deleted: values == 0}
		for ; values > 1 && !r.Failed; values-- {
			c.values = append(c.values, r.Text())
		}
		list = append(list, c)
	}
	return list
}
