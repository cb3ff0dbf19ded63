package kept

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

type (
	plain struct {
		ID    string            `json:"id"`
		Cents int64             `json:"amount-cents,omitempty"`
		Rate  float64           `json:"rate"`
		Tags  []string          `json:"tags,omitempty"`
		By    map[string]uint64 `json:"by"`
		Next  *line             `json:"next,omitempty"`
		Lines []line
		Sum   [4]byte
		_     int
		_     [0]func()
	}
	line    struct{ SKU, Text string }
	hidden  struct{ amount int }
	partly  struct{ ID, amount string }
	omitted struct {
		ID    string
		Cents int `json:"-"`
	}
	collided struct {
		Cents  int
		Amount int `json:"Cents"`
	}
	embedding struct {
		line
		Cents int
	}
	shadowing struct {
		line
		SKU int
	}
	stamp struct {
		time.Time
		amount int
	}
	dated  struct{ At time.Time }
	node   struct{ Next *node }
	quoted struct {
		N int `json:",string"`
	}
	zeroed struct {
		At lately `json:",omitzero"`
	}
	locked struct {
		ID string
		mu sync.Mutex
	}
	withFunc struct{ F func() }
	anyField struct{ V any }
	list     []list
	oneWay   struct{ Cents int }
	money    struct {
		digits *big.Int
		scale  int
	}
	identified struct{ id string }
	cyclic     struct {
		self  *cyclic
		cents int
	}
	panics  struct{}
	message struct{ ID string }
	bytes1  uint8
)

type lately int

func (l lately) IsZero() bool { return l < 10 }

func (oneWay) MarshalJSON() ([]byte, error) { return []byte(`{}`), nil }

// money is like decimal types: equal amounts have several forms, and are encoded in one.
func (m money) MarshalText() ([]byte, error) {
	return new(big.Rat).SetFrac(m.digits, m.unit()).MarshalText()
}
func (m money) unit() *big.Int {
	return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(m.scale)), nil)
}
func (m money) rat() *big.Rat { return new(big.Rat).SetFrac(m.digits, m.unit()) }
func (m *money) UnmarshalText(text []byte) error {
	var r big.Rat
	err := r.UnmarshalText(text)
	for m.scale = 0; !r.IsInt(); m.scale++ {
		r.Mul(&r, big.NewRat(10, 1))
	}
	m.digits = r.Num()
	return err
}
func (m money) Equal(other money) bool { return m.rat().Cmp(other.rat()) == 0 }

// identified has a method Equal that no encoding of its own makes meaningful.
func (i identified) Equal(other identified) bool { return i.id == other.id }

func (c *cyclic) MarshalJSON() ([]byte, error) { return json.Marshal(c.cents) }
func (c *cyclic) UnmarshalJSON(text []byte) error {
	c.self = c
	return json.Unmarshal(text, &c.cents)
}

func (panics) MarshalJSON() ([]byte, error) { panic("boom") }

func (*message) ProtoReflect() {}

func survives[T any](value T) func(*testing.T) {
	return func(t *testing.T) {
		if err := Check[T](); err != nil {
			t.Errorf("Check: %v", err)
		}
		data, err := Encode(value)
		if err != nil {
			t.Fatalf("Encode: %v", err)
		}
		if err := compare(value, data); err != nil {
			t.Errorf("the type is taken for faithful: %v", err)
		}
	}
}

// changes is for a value that changes; at is where.
func changes[T any](value T, at string) func(*testing.T) {
	return func(t *testing.T) {
		if err := Check[T](); err != nil {
			t.Errorf("Check: %v", err)
		}
		if data, err := Encode(value); !errors.Is(err, ErrEncoding) || !strings.Contains(err.Error(), at) || data != nil {
			t.Errorf("%s, %v, want an error with %q", data, err, at)
		}
	}
}

func unfitType[T any](why string) func(*testing.T) {
	return func(t *testing.T) {
		if err := Check[T](); !errors.Is(err, ErrEncoding) || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
}

const above = 1<<53 + 1

func TestValues(t *testing.T) {
	berlin := time.FixedZone("CET", 3600)
	lmt := time.FixedZone("LMT", 3208)
	var nilSlice []int
	c := &cyclic{cents: 5}
	c.self = c
	for name, test := range map[string]func(*testing.T){
		"plain": survives(plain{
			ID: "\u2028<é\ufffd>", Cents: above, Rate: 0.1, By: map[string]uint64{"a": math.MaxUint64}, Next: &line{"a", "b"}, Lines: []line{{}}, Sum: [4]byte{255},
		}),
		"nothing":                   survives(struct{}{}),
		"nil":                       survives[*plain](nil),
		"nil in an interface":       survives[any](nil),
		"nil and empty slices":      survives([][]int{nil, {}}),
		"an omitted empty slice":    survives(plain{Tags: []string{}}),
		"bytes":                     survives([]bytes1{0, 255}),
		"a small float":             survives(float32(0.1)),
		"a negative zero":           survives(math.Copysign(0, -1)),
		"JSON with whitespace":      survives(json.RawMessage(`{ "a": 12345678901234567890 }`)),
		"no JSON":                   survives(json.RawMessage(nil)),
		"a number":                  survives(json.Number("1.0")),
		"a list":                    survives(&node{&node{}}),
		"an embedded struct":        survives(embedding{line{"a", "b"}, 1}),
		"a quoted number":           survives(quoted{above}),
		"JSON's types in any":       survives[any](map[string]any{"a": []any{1.5, "x", true, nil}}),
		"now":                       survives(time.Now()),
		"a time in a field":         survives([]dated{{time.Now().In(berlin)}}),
		"a time in a map":           survives(map[string]time.Time{"a": time.Now()}),
		"a zero time":               survives(time.Time{}),
		"a unit of time":            survives(time.Hour),
		"a big integer":             survives(*new(big.Int).Lsh(big.NewInt(1), 100)),
		"a big zero in a map":       survives(map[string]*big.Int{"a": {}}),
		"an address":                survives(netip.MustParseAddr("::1%eth0")),
		"an amount in another form": survives([]money{{big.NewInt(1500), 3}}),
		"a mutex that is free":      survives(&locked{ID: "a", mu: sync.Mutex{}}),
		"a cycle in its own form":   survives(c),

		"an unexported field":            changes(partly{"a", "b"}, "partly.amount"),
		"a field that is left out":       changes([]omitted{{"a", 5}}, "[0].Cents"),
		"a form that only pointers have": changes(map[string]big.Int{"a": {}}, ""),
		"fields of one name":             changes(collided{1, 2}, "collided.Cents"),
		"a shadowed field":               changes(shadowing{line{"a", "b"}, 1}, ".line.SKU"),
		"a field beside a time":          changes(stamp{time.Now(), 5}, "stamp.amount"),
		"a zero of its own":              changes(zeroed{5}, "zeroed.At"),
		"an integer in any":              changes[any](above, "interface {}"),
		"a small integer in any":         changes(anyField{5}, "anyField.V"),
		"a struct in any":                changes(map[string]any{"k": line{}}, "[...]"),
		"a pointer to nil":               changes(&nilSlice, ""),
		"bytes that are no text":         changes("a\xff", "string"),
		"bytes of a key":                 changes(map[string]int{"\xff": 1}, ""),
		"NaN":                            changes(math.NaN(), "NaN"),
		"an empty number":                changes(json.Number(""), ""),
		"an offset with seconds":         changes(time.Date(1890, 1, 1, 0, 0, 0, 0, lmt), "time.Time"),
		"a time after the year 9999":     changes(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), ""),
		"an encoding without a way":      changes(oneWay{5}, "oneWay.Cents"),
		"a panic in an encoding":         changes(panics{}, "boom"),
		"a function in an any":           changes[any](func() {}, "func()"),
		"an error in a field":            changes(struct{ Err error }{errors.New("x")}, "Err"),
		"a key of a type with a form":    changes(map[time.Time]int{time.Now(): 1}, ""),
		"an opaque value in a field":     changes(struct{ H hidden }{hidden{5}}, ".H.amount"),
		"a list that is too long":        changes(long(11_000), ""),

		"only unexported fields":       unfitType[[]*hidden]("hidden has no field"),
		"Equal without an encoding":    unfitType[identified]("no field"),
		"a function":                   unfitType[func()]("func() has no JSON"),
		"a channel":                    unfitType[map[string]chan int]("chan int has no JSON"),
		"a complex number":             unfitType[complex128]("complex128"),
		"a function in a field":        unfitType[*withFunc]("withFunc has a field"),
		"an interface":                 unfitType[error]("error is an interface"),
		"keys that are no text":        unfitType[map[[2]int]int]("map[[2]int]int"),
		"fields with keys of that":     unfitType[struct{ M map[float64]int }]("a field"),
		"a named time":                 unfitType[struct{ hidden time.Time }]("no field"),
		"a protobuf message":           unfitType[*message]("protobuf"),
		"a list of lists is not unfit": survives(list{{}, nil}),
	} {
		t.Run(name, test)
	}
}

func long(n int) (l *node) {
	for range n {
		l = &node{l}
	}
	return l
}

// Types are taken for faithful, so that ordinary values are not decoded.
func TestFaithful(t *testing.T) {
	for of, want := range map[reflect.Type]bool{
		reflect.TypeFor[plain]():     true,
		reflect.TypeFor[*line]():     true,
		reflect.TypeFor[[]byte]():    true,
		reflect.TypeFor[any]():       false,
		reflect.TypeFor[dated]():     false,
		reflect.TypeFor[partly]():    false,
		reflect.TypeFor[collided]():  false,
		reflect.TypeFor[omitted]():   false,
		reflect.TypeFor[**int]():     false,
		reflect.TypeFor[embedding](): false,
		reflect.TypeFor[node]():      false,
	} {
		if got := faithful(of, nil); got != want {
			t.Errorf("%v: %v", of, got)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	value := plain{ID: "ch_1", Cents: 4200, By: map[string]uint64{"a": 1}, Lines: []line{{"sku", "coffee"}}}
	b.Run("json.Marshal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = json.Marshal(value)
		}
	})
	b.Run("faithful type", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = Encode(value)
		}
	})
	b.Run("type with a time", func(b *testing.B) {
		b.ReportAllocs()
		type timed struct {
			plain
			At time.Time
		}
		value := timed{value, time.Now()}
		for b.Loop() {
			_, _ = Encode(value)
		}
	})
	b.Run("Check", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = Check[plain]()
		}
	})
}
