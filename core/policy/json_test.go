package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// jsonPrint is the fingerprint of a body.
func jsonPrint(body string, fields ...string) (string, error) {
	s := setting.Of([]IdempotencyOption{JSONFingerprint(fields...)})
	print, err := s.Fingerprint(nil, []byte(body))
	return string(print), err
}

// nested is JSON in n arrays.
func nested(n int, of string) string { return strings.Repeat("[", n) + of + strings.Repeat("]", n) }

// Each group has bodies that are one request, and no two groups are.
func TestJSONFingerprint(t *testing.T) {
	for _, c := range []struct {
		fields []string
		groups [][]string
	}{
		{nil, [][]string{
			{"null", " null\n"}, {"true"}, {"false"}, {`""`}, {"[]", "[ ]"}, {"{}"}, {"[[]]"}, {"[{}]"}, {`"null"`}, {`[""]`}, {`["",""]`},
			{"0", "-0", "0.0", "0e5", "0e999999999999999999999"}, {"1", "1.0", "1e0", "10e-1", "0.1e1", "1E+0", "1.000"}, {"-1"}, {`"1"`}, {"[1]"}, {"[1,1]"}, {"[11]"},
			{"9007199254740992", "9007199254740992.0", "9.007199254740992e15"}, {"9007199254740993"}, {"9007199254740992.5"},
			{"0.1"}, {"0.1000000000000000055511151231257827"}, {"1e999999999"}, {"10e999999999"}, {"1e-999999999"}, {"0.1e-999999999"},
			{"1e999999999999999999"}, {"1e1000000000000000000"}, {"10e999999999999999999"}, // too large to be one number
			{`"a"`, `"\u0061"`}, {`"A"`}, {`"é"`, `"\u00e9"`, `"\u00E9"`}, {"\"e\u0301\""}, {`"/"`, `"\/"`}, {`"\""`, `"\u0022"`}, {`"\\"`}, {`"\\u0061"`},
			{`"😀"`, `"\ud83d\ude00"`}, {`"\ud83d"`}, {`"\ude00"`}, {`"\ud800"`}, {`"\ufffd"`, "\"\ufffd\""}, {"\"\xff\""}, {"\"\xfe\""}, {"\"\xed\xa0\x80\""},
			{`{"a":1,"b":2}`, "{ \"b\" : 2 ,\t\"\\u0061\" : 1.0 }\r\n"}, {`{"a":2,"b":1}`}, {`{"a":1}`}, {`{"a":1,"b":null}`}, {`{"A":1,"b":2}`},
			{`{"a":{"b":1,"c":[{"d":1,"e":2}]}}`, `{"a":{"c":[{"e":2,"d":1}],"b":1}}`}, {`[1,2]`}, {`[2,1]`}, {`{"":0}`}, {`[{"a":1},{"b":2}]`},
			{"["}, {"[1,]"}, {""}, {" "}, {`{"a":1}{"a":2}`}, {`{"a":1}{"a":3}`}, {"01"}, {"+1"}, {"NaN"}, {"\ufeff1"}, {"'a'"},
			{nested(100, "1"), nested(100, "1.0")}, {nested(101, "1")}, {nested(101, "1.0")}, {nested(20_000, "")},
		}},
		{[]string{"amount", "account.iban"}, [][]string{
			{`{"amount":1,"account":{"iban":"x","name":"y"},"sent":5}`, `{"sent":[{"amount":2}],"account":{"iban":"x"},"amount":1e0}`},
			{`{"amount":2,"account":{"iban":"x"}}`}, {`{"amount":1,"account":{"iban":"y"}}`},
			{`{"amount":1}`, `{"amount":1,"iban":"x"}`}, {`{"amount":1,"account":{}}`, `{"amount":1,"account":{"name":"y"}}`},
			{`{"amount":1,"account":null}`}, {`{"amount":1,"account":{"iban":null}}`}, {`{"amount":1,"account":{"iban":""}}`},
			{`{"amount":1,"account":[{"iban":"x"}]}`}, {`{"amount":1,"account":[{"iban":"x","name":"y"}]}`}, {`{"amount":1,"account":"iban"}`},
			{`{"Amount":1,"account":{"iban":"x"}}`}, {`{"Amount":2,"account":{"iban":"x"}}`},
			{`{"account.iban":"x"}`, `{}`, `{"":1}`}, {`{"amount":null}`}, {`{"amount":{}}`}, {"[]"}, {"null"}, {`"amount"`}, {""},
		}},
		{[]string{"account.iban", "account", "ACCOUNT.name"}, [][]string{{`{"account":{"a":1,"b":2}}`, `{"account":{"b":2,"a":1}}`}, {`{"account":{"a":1}}`}}},
		{[]string{"b", "a"}, [][]string{{`{"a":1,"b":2}`, `{"b":2,"a":1,"c":3}`}, {`{"a":2,"b":1}`}}},
	} {
		seen := make(map[string]string)
		for _, group := range c.groups {
			first, err := jsonPrint(group[0], c.fields...)
			if err != nil {
				t.Errorf("%.40q: %v", group[0], err)
			}
			if other, ok := seen[first]; ok {
				t.Errorf("by %q, %.40q and %.40q are one request", c.fields, group[0], other)
			}
			seen[first] = group[0]
			for _, body := range group[1:] {
				if print, err := jsonPrint(body, c.fields...); err != nil || print != first {
					t.Errorf("by %q, %.40q and %.40q are two requests (%v)", c.fields, group[0], body, err)
				}
			}
		}
	}
}

// A body whose readers may differ in what it says is refused.
func TestJSONFingerprintRefuses(t *testing.T) {
	for _, body := range []string{
		`{"amount":1,"amount":2}`, `{"amount":1,"amount":1}`, `{"amount":1,"\u0061mount":2}`, `{"a":[{"b":{"":1,"":2}}]}`, `{"a":1,"b":2,"a":3}`,
	} {
		for _, fields := range [][]string{nil, {"amount"}, {"other"}} {
			if print, err := jsonPrint(body, fields...); !errors.Is(err, errSameName) {
				t.Errorf("%s by %q: %q, %v", body, fields, print, err)
			}
		}
	}
	for _, body := range []string{`{"amount":1,"AMOUNT":2}`, `{"Amount":1,"AMOUNT":2}`} { // encoding/json takes the last one
		if _, err := jsonPrint(body, "amount"); !errors.Is(err, errSameName) {
			t.Errorf("%s: %v", body, err)
		}
		if _, err := jsonPrint(body); err != nil {
			t.Errorf("%s without fields: %v", body, err)
		}
	}
}

func TestJSONFingerprintPanics(t *testing.T) {
	for _, field := range []string{"", ".", "a.", ".a", "a..b", "\xff"} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "policy: JSONFingerprint: ") {
					t.Errorf("%q: panicked with %q", field, got)
				}
			}()
			JSONFingerprint("a", field)
		}()
	}
}

// FuzzJSONFingerprint compares with a model: trees with rational numbers.
func FuzzJSONFingerprint(f *testing.F) {
	for _, pair := range [][2]string{
		{"9007199254740992", "9007199254740993"}, {`{"a":1.50,"b":[null,true]}`, `{"b":[null,true],"a":15e-1}`}, {`{"a":1,"a":2}`, `{"a":1}`},
		{`["a\u00e9😀"]`, `["aé\ud83d\ude00"]`}, {`{"a":{"b":""}}`, `{"a":{"b":null}}`}, {"-0.0", "0"}, {`"\ud800"`, `"\ufffd"`}, {"[100e-3,7]", "[0.1,7]"}, {"[", "[]"},
	} {
		f.Add(pair[0], pair[1], uint64(1))
	}
	f.Fuzz(func(t *testing.T, a, b string, seed uint64) {
		treeA, okA := modelOf(t, a)
		treeB, okB := modelOf(t, b)
		if !okA || !okB {
			return
		}
		printA, errA := jsonPrint(a)
		printB, errB := jsonPrint(b)
		if errA != nil || errB != nil || (printA == printB) != (canonical(treeA) == canonical(treeB)) {
			t.Errorf("%q and %q: %q and %q (%v, %v)", a, b, printA, printB, errA, errB)
		}
		random := rand.New(rand.NewPCG(seed, 0))
		for range 3 {
			again := respell(random, treeA)
			if print, err := jsonPrint(again); err != nil || print != printA {
				t.Errorf("%q and %q are two requests: %v", a, again, err)
			}
		}
	})
}

var surrogate = regexp.MustCompile(`(?i)\\ud[89a-f]`)

// modelOf returns the tree of a text: nil, bool, string, *big.Rat, []any or map[string]any. It is
// false for one that the model does not have. A text with two members of one name must be refused.
func modelOf(t *testing.T, text string) (any, bool) {
	if !utf8.ValidString(text) || !json.Valid([]byte(text)) || surrogate.MatchString(text) && strings.ContainsRune(plainJSON(text), utf8.RuneError) {
		return nil, false
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	tree, err := readTree(d, maxJSONDepth)
	if errors.Is(err, errSameName) {
		if _, err := jsonPrint(text); err == nil {
			t.Errorf("%q is not refused", text)
		}
	}
	return tree, err == nil
}

// plainJSON is JSON without escapes of characters.
func plainJSON(text string) string {
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return "\ufffd"
	}
	var b bytes.Buffer
	_ = json.NewEncoder(&b).Encode(v)
	return b.String()
}

func readTree(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Number:
		return readNumber(token.String())
	case json.Delim:
		if depth == 0 {
			return nil, io.ErrShortBuffer
		}
		if token == '[' {
			return readList(d, depth-1)
		}
		return readMap(d, depth-1)
	}
	return token, nil
}

func readNumber(text string) (any, error) {
	if _, exponent, ok := strings.Cut(strings.ToLower(text), "e"); ok {
		if e, err := strconv.Atoi(exponent); err != nil || max(e, -e) > 60 {
			return nil, io.ErrShortBuffer
		}
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, io.ErrUnexpectedEOF
	}
	return r, nil
}

func readList(d *json.Decoder, depth int) (any, error) {
	list := []any{}
	for d.More() {
		v, err := readTree(d, depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := d.Token()
	return list, err
}

func readMap(d *json.Decoder, depth int) (any, error) {
	tree := make(map[string]any)
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := readTree(d, depth)
		if err != nil {
			return nil, err
		}
		if _, ok := tree[name.(string)]; ok {
			return nil, errSameName
		}
		tree[name.(string)] = v
	}
	_, err := d.Token()
	return tree, err
}

// canonical is a text of a tree, which other trees do not have.
func canonical(tree any) string {
	switch tree := tree.(type) {
	case *big.Rat:
		return tree.RatString()
	case []any:
		var b strings.Builder
		for _, v := range tree {
			b.WriteString(canonical(v) + ",")
		}
		return "[" + b.String() + "]"
	case map[string]any:
		var all []string
		for name, v := range tree {
			all = append(all, strconv.Quote(name)+":"+canonical(v))
		}
		slices.Sort(all)
		return fmt.Sprintf("{%q}", all)
	case string:
		return strconv.Quote(tree)
	}
	return fmt.Sprint(tree)
}

// respell writes a tree in one of its many ways.
func respell(random *rand.Rand, tree any) string {
	space := strings.Repeat([]string{" ", "\t", "\r\n"}[random.IntN(3)], random.IntN(2))
	var text string
	switch tree := tree.(type) {
	case nil:
		text = "null"
	case *big.Rat:
		text = respellNumber(random, tree)
	case string:
		text = respellString(random, tree)
	case []any:
		var all []string
		for _, v := range tree {
			all = append(all, respell(random, v))
		}
		text = "[" + space + strings.Join(all, ",") + "]"
	case map[string]any:
		var all []string
		for _, name := range slices.Sorted(maps.Keys(tree)) {
			all = append(all, space+respellString(random, name)+space+":"+respell(random, tree[name]))
		}
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		text = "{" + strings.Join(all, ",") + space + "}"
	default:
		text = fmt.Sprint(tree)
	}
	return space + text + space
}

func respellNumber(random *rand.Rand, r *big.Rat) string {
	shift := random.IntN(20) - 10
	power := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(shift, -shift))), nil))
	if shift < 0 {
		power.Inv(power)
	}
	shifted := new(big.Rat).Quo(r, power)
	digits, _ := shifted.FloatPrec() // all numbers of JSON have finitely many
	return shifted.FloatString(digits+random.IntN(3)) + []string{"e", "E"}[random.IntN(2)] + strconv.Itoa(shift)
}

func respellString(random *rand.Rand, s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < ' ', r == '"', r == '\\', r < 0x10000 && random.IntN(2) == 0:
			fmt.Fprintf(&b, []string{`\u%04x`, `\u%04X`}[random.IntN(2)], r)
		default:
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

func BenchmarkJSONFingerprint(b *testing.B) {
	order := `{"amount":4200,"currency":"EUR","account":{"iban":"DE89370400440532013000","name":"Ada"},"lines":[` +
		strings.Repeat(`{"sku":"coffee","n":1},`, 40) + `{}]}`
	deep := strings.Repeat(`{"z":0,"a":`, 99) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("}", 99)
	for name, body := range map[string]string{"1 KiB": order, "1 MiB, nested": deep} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				_, _ = jsonPrint(body, "amount", "account.iban")
			}
		})
		b.Run(name+", whole", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				_, _ = jsonPrint(body)
			}
		})
	}
}
