// Package kept encodes the values that are kept for repeats, and checks that they survive encoding.
package kept

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// ErrEncoding is guard.ErrEncoding.
var ErrEncoding = errors.New("guard: value does not survive its encoding")

// Check returns an error that matches ErrEncoding if values of type T do not survive their
// encoding, except for nil, zero and empty ones.
func Check[T any]() error {
	if why := verdictOf(reflect.TypeFor[T]()).unfit; why != "" {
		return fmt.Errorf("%w: %s", ErrEncoding, why)
	}
	return nil
}

// Encode encodes a value as JSON that decodes to an equal value. An error matches ErrEncoding. It
// names the part that changes, without its value.
func Encode[T any](value T) (data []byte, err error) {
	defer func() {
		if r := recover(); r != nil { // of one of the value's methods
			data, err = nil, fmt.Errorf("%w: panic: %v", ErrEncoding, r)
		}
	}()
	data, err = json.Marshal(&value) // with the methods of *T, by which it is decoded
	if err == nil && (!verdictOf(reflect.TypeFor[T]()).faithful || replacesBytes(data)) {
		err = compare(value, data)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEncoding, err)
	}
	return data, nil
}

// replacesBytes reports whether JSON may have replacements of bytes that are no UTF-8.
func replacesBytes(data []byte) bool {
	return bytes.Contains(data, []byte(`\ufffd`)) || bytes.Contains(data, []byte("\ufffd"))
}

// compare returns an error if data decodes to another value.
func compare[T any](value T, data []byte) error {
	var decoded T
	if err := json.Unmarshal(data, &decoded); err != nil {
		return err
	}
	var c comparison
	if at, equal := c.equal(reflect.ValueOf(&value).Elem(), reflect.ValueOf(&decoded).Elem()); !equal {
		return fmt.Errorf("%v%s decodes to another value", reflect.TypeFor[T](), at)
	}
	return nil
}

// verdict is the result for all values of a type.
type verdict struct {
	unfit    string // why none survives; "" if one may
	faithful bool   // all survive whose JSON has no replaced bytes
}

var verdicts sync.Map // of types

func verdictOf(t reflect.Type) *verdict {
	if v, ok := verdicts.Load(t); ok {
		return v.(*verdict)
	}
	v := &verdict{unfit: unfit(t, nil), faithful: faithful(t, nil)}
	verdicts.Store(t, v)
	return v
}

// unfit returns why values of a type do not survive, except for nil, zero and empty ones; "" if
// some may. outer are the types that contain t.
func unfit(t reflect.Type, outer []reflect.Type) string {
	if decodesItself(t) || slices.Contains(outer, t) {
		return ""
	}
	outer = append(outer, t)
	switch t.Kind() {
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return fmt.Sprintf("%v is an interface, which no JSON decodes to", t)
		}
	case reflect.Map:
		if isKey(t.Key()) {
			return unfit(t.Elem(), outer)
		}
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return unfit(t.Elem(), outer)
	case reflect.Struct:
		return unfitStruct(t)
	}
	if !hasJSON(t) {
		return fmt.Sprintf("%v has no JSON", t)
	}
	return ""
}

func unfitStruct(t reflect.Type) string {
	if _, ok := reflect.PointerTo(t).MethodByName("ProtoReflect"); ok {
		return fmt.Sprintf("%v is a protobuf message, which encoding/json does not restore: keep its bytes", t)
	}
	if !hasJSON(t) {
		return fmt.Sprintf("%v has a field that has no JSON", t)
	}
	if t.Size() > 0 && !slices.ContainsFunc(fields(t), isEncoded) {
		return fmt.Sprintf("%v has no field that is encoded", t)
	}
	return ""
}

// hasJSON reports whether values of a type can be encoded, apart from its elements and fields.
func hasJSON(t reflect.Type) bool {
	if encodesItself(t) {
		return true
	}
	switch t.Kind() {
	case reflect.Func, reflect.Chan, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
		return false
	case reflect.Map:
		return isKey(t.Key())
	case reflect.Array:
		return t.Len() == 0 || hasJSON(t.Elem())
	case reflect.Struct:
		return !slices.ContainsFunc(fields(t), func(f reflect.StructField) bool {
			return isEncoded(f) && !strings.Contains(f.Tag.Get("json"), ",omit") && !hasJSON(f.Type)
		})
	}
	return true
}

func fields(t reflect.Type) []reflect.StructField { return slices.Collect(t.Fields()) }

// isEncoded reports whether a field, or one that it embeds, is encoded.
func isEncoded(f reflect.StructField) bool {
	return (f.IsExported() || f.Anonymous) && f.Tag.Get("json") != "-"
}

// faithful reports whether all values of a type survive, unless their JSON has replaced bytes. It
// is false if there is any doubt. outer are the types that contain t.
func faithful(t reflect.Type, outer []reflect.Type) bool {
	if encodesItself(t) || decodesItself(t) || t == reflect.TypeFor[json.Number]() || slices.Contains(outer, t) {
		return false
	}
	outer = append(outer, t)
	switch k := t.Kind(); k {
	case reflect.String:
		return true
	case reflect.Slice, reflect.Array:
		return faithful(t.Elem(), outer)
	case reflect.Pointer: // a pointer to nil decodes to nil
		return !slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, t.Elem().Kind()) && faithful(t.Elem(), outer)
	case reflect.Map:
		return isKey(t.Key()) && faithful(t.Key(), outer) && faithful(t.Elem(), outer)
	case reflect.Struct:
		names := make(map[string]bool)
		return !slices.ContainsFunc(fields(t), func(f reflect.StructField) bool { return !faithfulField(f, names, outer) })
	default:
		return reflect.Bool <= k && k <= reflect.Float64
	}
}

// faithfulField is faithful for a field. names has the JSON names of the struct's earlier fields.
func faithfulField(f reflect.StructField, names map[string]bool, outer []reflect.Type) bool {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" {
		name = f.Name
	}
	_, isZero := reflect.PointerTo(f.Type).MethodByName("IsZero")
	switch {
	case f.Name == "_", !f.IsExported() && f.Type.Size() == 0:
		return true
	case f.Anonymous, !f.IsExported(), name == "-", names[name], strings.ContainsFunc(name, isUnusual):
		return false
	case strings.Contains(options, "string"), strings.Contains(options, "omitzero") && isZero:
		return false
	}
	names[name] = true
	return faithful(f.Type, outer)
}

// isUnusual reports whether encoding/json may not take a tag with a character as a name.
func isUnusual(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-.", r)
}

// isKey reports whether the keys of JSON objects can have a type.
func isKey(t reflect.Type) bool {
	if t.Kind() == reflect.String || reflect.Int <= t.Kind() && t.Kind() <= reflect.Uintptr {
		return true
	}
	return t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) &&
		reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// encodesItself reports whether a type has its own encoding.
func encodesItself(t reflect.Type) bool {
	return has(t, reflect.TypeFor[json.Marshaler]()) || has(t, reflect.TypeFor[encoding.TextMarshaler]())
}

// decodesItself reports whether a type has its own decoding.
func decodesItself(t reflect.Type) bool {
	return has(t, reflect.TypeFor[json.Unmarshaler]()) || has(t, reflect.TypeFor[encoding.TextUnmarshaler]())
}

func has(t, methods reflect.Type) bool {
	return t.Implements(methods) || reflect.PointerTo(t).Implements(methods)
}
