package script

import (
	"strconv"
	"time"
)

// Reader reads the fields of a script's reply.
type Reader struct {
	Left []any
	Err  error
}

// Fields returns a reader of a list.
func Fields(reply any) *Reader {
	list, ok := reply.([]any)
	if !ok || len(list) == 0 {
		return &Reader{Err: ErrOddReply}
	}
	return &Reader{Left: list}
}

func (r *Reader) next() any {
	if len(r.Left) == 0 {
		r.Err = ErrOddReply
		return nil
	}
	v := r.Left[0]
	r.Left = r.Left[1:]
	return v
}

// Text reads a text.
func (r *Reader) Text() string {
	s, ok := r.next().(string)
	if !ok {
		r.Err = ErrOddReply
	}
	return s
}

// Number reads an integer, or the text of one: scripts format large ones.
func (r *Reader) Number() int64 {
	switch v := r.next().(type) {
	case int64:
		return v
	case string:
		return r.Parse(v)
	}
	r.Err = ErrOddReply
	return 0
}

// Parse returns the integer in a text.
func (r *Reader) Parse(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.Err = ErrOddReply
	}
	return n
}

// Micros reads a number of microseconds.
func (r *Reader) Micros() time.Duration { return time.Duration(r.Number()) * time.Microsecond }

// Int reads a reply that is an integer.
func Int(reply any) (int, error) {
	n, ok := reply.(int64)
	if !ok {
		return 0, ErrOddReply
	}
	return int(n), nil
}

// IsOne reads the reply of a script that returns 1 if the caller owned the lease or record that it
// changes.
func IsOne(reply any) (bool, error) {
	n, err := Int(reply)
	return n == 1, err
}
