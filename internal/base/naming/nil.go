package naming

import "reflect"

// IsNil reports whether an interface is nil or holds a nil pointer, map, slice, function or channel
// (a typed nil), on which the first call would panic.
func IsNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return r.IsNil()
	default:
		return false
	}
}
