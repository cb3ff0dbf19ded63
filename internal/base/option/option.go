// Package option applies the options of constructors.
package option

// Apply applies options to a configuration. Nil ones are ignored.
func Apply[C any, O ~func(*C)](c *C, options []O) {
	for _, o := range options {
		if o != nil {
			o(c)
		}
	}
}
