package redisstore

import (
	"strconv"
	"time"
)

// reader reads the fields of a script's reply.
type reader struct {
	left []any
	err  error
}

func fields(reply any) *reader {
	list, ok := reply.([]any)
	if !ok || len(list) == 0 {
		return &reader{err: errOddReply}
	}
	return &reader{left: list}
}

func (r *reader) next() any {
	if len(r.left) == 0 {
		r.err = errOddReply
		return nil
	}
	v := r.left[0]
	r.left = r.left[1:]
	return v
}

func (r *reader) text() string {
	s, ok := r.next().(string)
	if !ok {
		r.err = errOddReply
	}
	return s
}

// number reads an integer, or the text of one: scripts format large ones.
func (r *reader) number() int64 {
	switch v := r.next().(type) {
	case int64:
		return v
	case string:
		return r.parse(v)
	}
	r.err = errOddReply
	return 0
}

func (r *reader) parse(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.err = errOddReply
	}
	return n
}

func (r *reader) micros() time.Duration { return time.Duration(r.number()) * time.Microsecond }
