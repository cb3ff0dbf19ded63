package naming

import "reflect"

// IsNil reports whether what an interface holds is nothing: nil, or a nil pointer (a typed nil), on which the
// first call would panic.
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
