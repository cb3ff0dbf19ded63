// Package naming checks the names and keys that mechanisms accept, and makes their random IDs.
package naming

import (
	"errors"
	"fmt"
)

// MaxName and MaxKey are lengths in bytes.
const (
	MaxName = 128
	MaxKey  = 1024
)

// CheckName refuses a mechanism's name that could not stand in a header or in telemetry:
// it has 1 to MaxName bytes of printable ASCII, neither starting nor ending in a space.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("name is empty")
	case len(name) > MaxName:
		return fmt.Errorf("name has %d bytes, at most %d are allowed", len(name), MaxName)
	case name[0] == ' ' || name[len(name)-1] == ' ':
		return fmt.Errorf("name %q starts or ends with a space", name)
	}
	for i := range len(name) {
		if name[i] < 0x20 || name[i] > 0x7e {
			return fmt.Errorf("name %q has a character that is not printable ASCII", name)
		}
	}
	return nil
}

// CheckKey refuses a key that is empty or longer than MaxKey bytes. Any byte is allowed in it.
func CheckKey(key string) error {
	switch {
	case key == "":
		return errors.New("key is empty")
	case len(key) > MaxKey:
		return fmt.Errorf("key has %d bytes, at most %d are allowed", len(key), MaxKey)
	}
	return nil
}
