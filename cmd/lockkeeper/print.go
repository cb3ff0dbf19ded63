package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// printer prints text that cannot control a terminal.
type printer struct{ w io.Writer }

// line prints a line. An error of standard output has no place to be reported.
func (p printer) line(format string, args ...any) {
	_, _ = fmt.Fprintln(p.w, printable(fmt.Sprintf(format, args...)))
}

// printable returns a text on one line, without characters that terminals obey: control characters,
// changes of the direction of text, and other invisible ones.
func printable(text string) string {
	indent := text[:len(text)-len(strings.TrimLeft(text, " "))]
	return indent + strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, operate.OneLine(text))
}

// quoted returns a text that others have chosen, such as a label: as it is, or in quotes with escapes
// if it has characters that cannot be seen, spaces that may be overlooked, or quotes.
func quoted(text string) string {
	if text != strings.TrimSpace(text) || text != printable(text) || strings.Contains(text, "  ") ||
		strings.ContainsAny(text, "\"\\") {
		return strconv.Quote(text)
	}
	return text
}

// json prints a value. Its type has fences as strings, since readers of JSON may round numbers.
func (p printer) json(value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	_, _ = p.w.Write(append(escaped(text), '\n'))
	return nil
}

// escaped returns JSON with escapes for characters that are not printable. JSON has such characters
// in strings only, besides line breaks.
func escaped(text []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}

// view is what a command shows.
type view interface {
	text(p printer)
}

// print prints a view as text, or as JSON.
func (c *call) print(v view) error {
	if c.json {
		return c.out.json(v)
	}
	v.text(c.out)
	return nil
}
