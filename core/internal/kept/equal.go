package kept

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"time"
)

// comparison compares a value with the result of decoding its JSON.
type comparison struct {
	compared map[pair]bool // ends cycles, which values with their own encoding may have
}

type pair struct {
	a, b uintptr
	n    int // of elements
	t    reflect.Type
}

// equal reports whether two values of one type are equal, or the path of a part that differs:
//   - A nil slice or map equals an empty one.
//   - Times are equal if they are the same instant.
//   - JSON texts are equal if they differ in whitespace only.
//   - Values of other types with their own encoding are equal if their method Equal or Cmp says so.
func (c *comparison) equal(a, b reflect.Value) (at string, equal bool) {
	if a.CanInterface() {
		if equal, known := equalByMethod(a, b); known {
			return "", equal
		}
	}
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() || a.Pointer() == b.Pointer() || c.before(a, b, 1) {
			return "", a.IsNil() == b.IsNil()
		}
		return c.equal(a.Elem(), b.Elem())
	case reflect.Interface:
		if a.IsNil() || b.IsNil() || a.Elem().Type() != b.Elem().Type() {
			return "", a.IsNil() && b.IsNil()
		}
		return c.equal(a.Elem(), b.Elem())
	case reflect.Slice, reflect.Array:
		return c.equalElements(a, b)
	case reflect.Map:
		return c.equalMaps(a, b)
	case reflect.Struct:
		return c.equalFields(a, b)
	case reflect.Func:
		return "", a.IsNil() && b.IsNil()
	}
	return "", a.Equal(b)
}

func (c *comparison) equalElements(a, b reflect.Value) (string, bool) {
	if a.Len() != b.Len() {
		return "", false
	}
	if a.Kind() == reflect.Slice {
		if a.Type().Elem().Kind() == reflect.Uint8 {
			return "", bytes.Equal(a.Bytes(), b.Bytes())
		}
		if a.Len() > 0 && c.before(a, b, a.Len()) {
			return "", true
		}
	}
	for i := range a.Len() {
		if at, equal := c.equal(a.Index(i), b.Index(i)); !equal {
			return fmt.Sprintf("[%d]%s", i, at), false
		}
	}
	return "", true
}

func (c *comparison) equalMaps(a, b reflect.Value) (string, bool) {
	if a.Len() != b.Len() {
		return "", false
	}
	if a.Len() > 0 && c.before(a, b, a.Len()) {
		return "", true
	}
	for entries := a.MapRange(); entries.Next(); {
		other := b.MapIndex(entries.Key())
		if !other.IsValid() {
			return "[...]", false // keys may be personal data
		}
		if at, equal := c.equal(entries.Value(), other); !equal {
			return "[...]" + at, false
		}
	}
	return "", true
}

func (c *comparison) equalFields(a, b reflect.Value) (string, bool) {
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		if name == "_" {
			continue
		}
		if at, equal := c.equal(a.Field(i), b.Field(i)); !equal {
			return "." + name + at, false
		}
	}
	return "", true
}

// before reports whether two references to n elements are being compared, or have been.
func (c *comparison) before(a, b reflect.Value, n int) bool {
	p := pair{a.Pointer(), b.Pointer(), n, a.Type()}
	if c.compared[p] {
		return true
	}
	if c.compared == nil {
		c.compared = make(map[pair]bool)
	}
	c.compared[p] = true
	return false
}

// equalByMethod compares values of types with their own encoding, if a method for it is known.
func equalByMethod(a, b reflect.Value) (equal, known bool) {
	t := a.Type()
	if k := t.Kind(); k == reflect.Pointer || k == reflect.Interface || !encodesItself(t) {
		return false, false
	}
	a, b = addressed(a), addressed(b)
	switch x := a.Interface().(type) {
	case *time.Time:
		return x.Equal(*b.Interface().(*time.Time)), true
	case *json.RawMessage: // encoded without whitespace
		return bytes.Equal(compact(*x), compact(*b.Interface().(*json.RawMessage))), true
	}
	if result, ok := call(a.MethodByName("Equal"), b, reflect.Bool); ok {
		return result.Bool(), true
	}
	if result, ok := call(a.MethodByName("Cmp"), b, reflect.Int); ok {
		return result.Int() == 0, true
	}
	return false, false
}

func compact(text json.RawMessage) []byte {
	data, _ := json.Marshal(text) // both texts are the same JSON, or none
	return data
}

// addressed returns a pointer to a value, or to a copy of it.
func addressed(v reflect.Value) reflect.Value {
	if v.CanAddr() {
		return v.Addr()
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p
}

// call calls a method with a value, or a pointer to it, if that is its only parameter and it
// returns one result of a kind.
func call(method, p reflect.Value, result reflect.Kind) (reflect.Value, bool) {
	if !method.IsValid() || method.Type().NumIn() != 1 || method.Type().NumOut() != 1 || method.Type().Out(0).Kind() != result {
		return reflect.Value{}, false
	}
	for _, arg := range []reflect.Value{p.Elem(), p} {
		if arg.Type() == method.Type().In(0) {
			return method.Call([]reflect.Value{arg})[0], true
		}
	}
	return reflect.Value{}, false
}
