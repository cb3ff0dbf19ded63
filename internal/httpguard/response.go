package httpguard

import (
	"encoding/binary"
	"errors"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// response is a kept answer, but for its status.
type response struct {
	header http.Header
	body   []byte
}

// unrecorded fields belong to one transmission, one connection or one client, never to a replay.
var unrecorded = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Set-Cookie": true, "Set-Cookie2": true, "Date": true, "Server": true, "Content-Length": true,
	"Server-Timing": true, "Alt-Svc": true, "Ratelimit": true, "Ratelimit-Policy": true,
	"X-Ratelimit-Limit": true, "X-Ratelimit-Remaining": true, "X-Ratelimit-Reset": true,
	replayedHeader: true, statusHeader: true,
}

// recorded returns the fields that the handler set: what outer middleware had set before is its
// own matter at a replay too.
func recorded(before, after http.Header) http.Header {
	dropped := map[string]bool{}
	for _, value := range after["Connection"] { // names further fields of this connection
		for name := range strings.SplitSeq(value, ",") {
			dropped[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	h := http.Header{}
	for name, values := range after {
		if unrecorded[name] || dropped[name] || strings.HasPrefix(name, http.TrailerPrefix) || slices.Equal(before[name], values) {
			continue
		}
		h[name] = slices.Clone(values)
	}
	return h
}

// The encoding of a response: a version, the number of header fields' values, for each its name and
// value, then the body. Numbers are varints, and texts have their length before them.
const responseVersion = 1

var errDamaged = errors.New("httpguard: the kept response is damaged")

func (r response) encode() []byte {
	names := make([]string, 0, len(r.header))
	size, count := len(r.body)+16, 0
	for name, values := range r.header {
		names = append(names, name)
		for _, v := range values {
			count++
			size += len(name) + len(v) + 8
		}
	}
	slices.Sort(names)
	b := make([]byte, 0, size)
	b = append(b, responseVersion)
	b = binary.AppendUvarint(b, uint64(count))
	for _, name := range names {
		for _, v := range r.header[name] {
			b = appendText(b, name)
			b = appendText(b, v)
		}
	}
	return append(b, r.body...)
}

func decodeResponse(b []byte) (response, error) {
	if len(b) == 0 || b[0] != responseVersion {
		return response{}, errDamaged
	}
	count, n := binary.Uvarint(b[1:])
	if n <= 0 || count > uint64(len(b)) {
		return response{}, errDamaged
	}
	b = b[1+n:]
	r := response{header: http.Header{}}
	for range count {
		var name, value string
		var ok bool
		if name, b, ok = cutText(b); !ok {
			return response{}, errDamaged
		}
		if value, b, ok = cutText(b); !ok {
			return response{}, errDamaged
		}
		r.header[name] = append(r.header[name], value)
	}
	r.body = b
	return r, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func cutText(b []byte) (text string, rest []byte, ok bool) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return "", nil, false
	}
	b = b[n:]
	return string(b[:length]), b[length:], true
}
