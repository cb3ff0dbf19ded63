package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// JSONFingerprint compares JSON bodies by their content, and only the named fields; all fields if
// none is named. It is a [Fingerprint]. The order of members, whitespace and escapes do not matter.
// Numbers are equal if their values are, of any size: 1, 1.0 and 1e0 are equal; 9007199254740992
// and 9007199254740993 are not. A missing, a null and an empty field are different, and so are 1,
// "1" and [1].
//
// A field is the name of a member of the body, or the path to a member of a nested object, with
// dots between the names: account.iban. So a name with a dot cannot be given, but the object around
// it can. If the place of an object has another value, such as an array, all of it is compared.
// Names match as in encoding/json, in any case, but bodies with "iban" and with "IBAN" differ.
//
// A body is refused with status 400 if one of its objects has two members of one name, since
// readers differ in which of them counts, or two members that match one field. All bytes of a body
// are compared if it is not JSON, if it is nested more deeply than 100 levels, or if it has half of
// a surrogate pair, or a number with an exponent of more than 18 digits.
//
// Another set of fields makes other fingerprints: a request from before the change is refused with
// [KeyReused] when it is repeated after it.
//
// JSONFingerprint panics on a field that has an empty name or is not UTF-8. New panics if there is
// [KeyAlone] as well. With Fingerprint, the later one counts.
func JSONFingerprint(fields ...string) IdempotencyOption {
	var want *wanted
	for _, field := range fields {
		names := strings.Split(field, ".")
		if slices.Contains(names, "") || !utf8.ValidString(field) {
			panic(fmt.Sprintf("policy: JSONFingerprint: %q is no field", field))
		}
		if want == nil {
			want = new(wanted)
		}
		want.add(names)
	}
	return Fingerprint(func(_ *http.Request, body []byte) ([]byte, error) { return jsonFingerprint(body, want) })
}

// wanted lists the members of an object that are compared; nil stands for all of them.
type wanted struct {
	names   []string
	members []*wanted
}

func (w *wanted) add(names []string) {
	i := w.index(names[0])
	if i < 0 {
		i = len(w.names)
		w.names, w.members = append(w.names, names[0]), append(w.members, new(wanted))
	}
	switch {
	case len(names) == 1:
		w.members[i] = nil
	case w.members[i] != nil:
		w.members[i].add(names[1:])
	}
}

func (w *wanted) index(name string) int {
	return slices.IndexFunc(w.names, func(n string) bool { return strings.EqualFold(n, name) })
}

// of returns the compared part of a member, and whether it is compared. found has the earlier
// wanted members of the object.
func (w *wanted) of(name string, found []bool) (part *wanted, compared bool, err error) {
	if w == nil {
		return nil, true, nil
	}
	i := w.index(name)
	switch {
	case i < 0:
		return nil, false, nil
	case found[i]:
		return nil, false, errSameName
	}
	found[i] = true
	return w.members[i], true, nil
}

const (
	maxJSONDepth    = 100
	maxJSONExponent = 18 // digits
)

var (
	errSameName = errors.New("policy: JSONFingerprint: an object has two members of one name")
	errNoForm   = errors.New("no canonical form")
)

// jsonFingerprint returns the canonical form of a body, or a digest of the body if it has none.
func jsonFingerprint(body []byte, want *wanted) ([]byte, error) {
	f, err := jsonForm{text: body}, errNoForm
	if utf8.Valid(body) && json.Valid(body) {
		err = f.value(want, maxJSONDepth)
	}
	if errors.Is(err, errNoForm) {
		sum := sha256.Sum256(body)
		return append(sum[:], 'b'), nil
	}
	return append(f.form, 'j'), err
}

// jsonForm makes the canonical form of a valid JSON text. Each value is a letter and its content,
// whose end does not depend on the following text; so different values have different forms:
//
//	null, true, false   n, t, f
//	number              0, and the length of the rest: sign, digits without zeros at the ends,
//	                    and E with an exponent that is not zero
//	string              s, its length and itself
//	array               [, the values, ]
//	object              {, and a digest of the names and values in the order of the names' forms
type jsonForm struct {
	text []byte // the rest of it
	form []byte
}

// value adds the next value, and removes it from the text. want are its compared members.
func (f *jsonForm) value(want *wanted, depth int) error {
	switch c := f.next(); c {
	case '{', '[':
		if depth == 0 {
			return errNoForm
		}
		if c == '{' {
			return f.object(want, depth-1)
		}
		return f.array(depth - 1)
	case '"':
		s, err := f.string()
		f.add('s', s)
		return err
	case 'n', 't', 'f':
		f.form = append(f.form, c)
		f.token()
		return nil
	}
	n, err := canonicalNumber(f.token())
	f.add('0', n)
	return err
}

// next returns the first character of the next token.
func (f *jsonForm) next() byte {
	f.text = bytes.TrimLeft(f.text, " \t\r\n")
	return f.text[0]
}

// skip reports whether the next token is c, and if so removes it.
func (f *jsonForm) skip(c byte) bool {
	if f.next() != c {
		return false
	}
	f.text = f.text[1:]
	return true
}

// token removes and returns the next token, which is a name or a number.
func (f *jsonForm) token() []byte {
	n := bytes.IndexAny(f.text, " \t\r\n,]}")
	if n < 0 {
		n = len(f.text)
	}
	token := f.text[:n]
	f.text = f.text[n:]
	return token
}

func (f *jsonForm) add(letter byte, text []byte) {
	f.form = append(f.form, letter)
	f.form = binary.AppendUvarint(f.form, uint64(len(text)))
	f.form = append(f.form, text...)
}

// string removes the next string, and returns its content without escapes.
func (f *jsonForm) string() ([]byte, error) {
	escaped, end := false, 1
	for ; f.text[end] != '"'; end++ {
		if f.text[end] == '\\' {
			escaped = true
			end++
		}
	}
	quoted := f.text[:end+1]
	f.text = f.text[end+1:]
	if !escaped {
		return quoted[1:end], nil
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return nil, errNoForm
	}
	if strings.ContainsRune(s, utf8.RuneError) && bytes.Contains(bytes.ToLower(quoted), []byte(`\ud`)) {
		return nil, errNoForm // possibly from half of a surrogate pair
	}
	return []byte(s), nil
}

func (f *jsonForm) array(depth int) error {
	f.form = append(f.form, '[')
	f.skip('[')
	for !f.skip(']') {
		f.skip(',')
		if err := f.value(nil, depth); err != nil {
			return err
		}
	}
	f.form = append(f.form, ']')
	return nil
}

// member is the place of a member in the form of its object.
type member struct{ start, value, end int }

func (f *jsonForm) object(want *wanted, depth int) error {
	f.form = append(f.form, '{')
	f.skip('{')
	start := len(f.form)
	var members []member
	var found []bool
	if want != nil {
		found = make([]bool, len(want.names))
	}
	for !f.skip('}') {
		f.skip(',')
		m, err := f.member(want, found, depth)
		if err != nil {
			return err
		}
		members = append(members, m)
	}
	return f.digest(start, members)
}

// member adds the next member, or its name alone if it is not compared.
func (f *jsonForm) member(want *wanted, found []bool, depth int) (m member, err error) {
	m.start = len(f.form)
	f.next()
	name, err := f.string()
	if err != nil {
		return m, err
	}
	f.add('s', name)
	m.value = len(f.form)
	part, compared, err := want.of(string(name), found)
	if err != nil {
		return m, err
	}
	f.skip(':')
	err = f.value(part, depth)
	if !compared {
		f.form = f.form[:m.value]
	}
	m.end = len(f.form)
	return m, err
}

// digest replaces the members of an object, which are all of the form from start on, by a digest of
// the compared ones. So the form of a nested value is not copied once for every object around it.
func (f *jsonForm) digest(start int, members []member) error {
	name := func(m member) []byte { return f.form[m.start:m.value] }
	slices.SortFunc(members, func(a, b member) int { return bytes.Compare(name(a), name(b)) })
	h := sha256.New()
	for i, m := range members {
		if i > 0 && bytes.Equal(name(members[i-1]), name(m)) {
			return errSameName
		}
		if m.end > m.value {
			_, _ = h.Write(f.form[m.start:m.end])
		}
	}
	f.form = h.Sum(f.form[:start])
	return nil
}

// canonicalNumber returns the one form of all numbers with the same value.
func canonicalNumber(text []byte) ([]byte, error) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(string(text)), "e")
	digits, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return []byte("0"), nil
	}
	significant := strings.TrimRight(digits, "0")
	e, err := parseExponent(exponent)
	if err != nil {
		return nil, err
	}
	e += int64(len(digits) - len(significant) - len(fraction))
	form := make([]byte, 0, len(significant)+maxJSONExponent+3)
	if negative {
		form = append(form, '-')
	}
	form = append(form, significant...)
	if e != 0 {
		form = strconv.AppendInt(append(form, 'E'), e, 10)
	}
	return form, nil
}

func parseExponent(text string) (int64, error) {
	text = strings.TrimPrefix(text, "+")
	text, negative := strings.CutPrefix(text, "-")
	text = strings.TrimLeft(text, "0")
	switch {
	case text == "":
		return 0, nil
	case len(text) > maxJSONExponent:
		return 0, errNoForm
	}
	e, err := strconv.ParseInt(text, 10, 64)
	if negative {
		e = -e
	}
	return e, err
}
