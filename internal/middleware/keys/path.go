package keys

import (
	"cmp"
	"net/url"
	"strings"
)

// PathValue returns the value of a parameter of a route in the common spelling of all paths of a
// resource: decoded once. Some routers return a value as it was sent, where a%2Db and a-b differ,
// and others decode it. The whole path shows which of them this one did: the pattern with the
// values of the function value makes up the path as it was sent, or the decoded one.
//
// If it makes up neither, as when other middleware has rewritten the path, the value is decoded
// until there is no escape in it. Values that differ only in that then share a key, but no resource
// has two keys.
func PathValue(name string, value func(name string) string, u *url.URL, pattern Pattern) string {
	v := value(name)
	if !strings.Contains(v, "%") {
		return v
	}
	if pattern.Has(name) {
		sent := cmp.Or(u.RawPath, u.EscapedPath())
		// Never both: a path that was sent with an escape is longer than the decoded one.
		escaped := pattern.fill(func(name string) string { return url.PathEscape(value(name)) })
		if path, err := url.PathUnescape(escaped); err == nil && begins(u.Path, path) {
			return v
		}
		if decoded, err := url.PathUnescape(v); err == nil && begins(sent, pattern.fill(value)) {
			return decoded
		}
	}
	return decodeAll(v)
}

// begins reports whether a path begins with all segments of another. The end of a pattern may stand
// for more of the path than it has itself, and not every router keeps the slash there.
func begins(path, with string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(with, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// decodeAll decodes until there is no escape left, in one pass: a decoded character can be part of
// the next escape.
func decodeAll(s string) string {
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		b = append(b, s[i])
		for n := len(b) - 3; n >= 0 && b[n] == '%'; n = len(b) - 3 {
			high, low := strings.IndexByte(digits, b[n+1]), strings.IndexByte(digits, b[n+2])
			if high < 0 || low < 0 {
				break
			}
			b = append(b[:n], byte(high%16*16+low%16))
		}
	}
	return string(b)
}

// digits has each hexadecimal digit where its index, modulo 16, is its value.
const digits = "0123456789abcdef0123456789ABCDEF"
