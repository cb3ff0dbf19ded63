package keys

import (
	"slices"
	"strings"
)

// Pattern is a route's pattern, cut before and after its parameters.
type Pattern []part

// part is a text, and the parameter behind it, if there is one.
type part struct{ text, param string }

// Braced returns a pattern of http.ServeMux or chi: "PUT /carts/{id}", "/files/{path...}",
// "/v{n:[0-9]+}", "/static/*".
func Braced(pattern string) (p Pattern) {
	slash := strings.IndexByte(pattern, '/') // after a method and a host
	if slash < 0 {
		return nil
	}
	pattern = pattern[slash:]
	for {
		text, rest, ok := strings.Cut(pattern, "{")
		if !ok {
			break
		}
		end, depth := 0, 1 // chi's expressions have braces of their own
		for ; end < len(rest); end++ {
			if rest[end] == '{' {
				depth++
			} else if rest[end] == '}' {
				if depth--; depth == 0 {
					break
				}
			}
		}
		name, _, _ := strings.Cut(rest[:end], ":")
		name = strings.TrimSuffix(name, "...")
		if name == "$" { // the end of the path
			name = ""
		}
		p = append(p, part{text, name})
		pattern = rest[min(end+1, len(rest)):]
	}
	if text, ok := strings.CutSuffix(pattern, "*"); ok {
		return append(p, part{text, "*"})
	}
	return append(p, part{pattern, ""})
}

// Coloned returns a pattern of gin or echo: "/carts/:id", "/files/*path", "/static/*".
func Coloned(pattern string) (p Pattern) {
	for {
		i := strings.IndexAny(pattern, ":*")
		if i < 0 {
			return append(p, part{pattern, ""})
		}
		text := pattern[:i]
		if escaped, ok := strings.CutSuffix(text, `\`); ok { // a colon of the path
			p = append(p, part{escaped + ":", ""})
			pattern = pattern[i+1:]
			continue
		}
		name, _, _ := strings.Cut(pattern[i+1:], "/")
		rest := pattern[i+1+len(name):]
		switch {
		case pattern[i] == ':':
		case name == "": // echo's
			name = "*"
		default: // gin's, whose values begin with the slash
			text = strings.TrimSuffix(text, "/")
		}
		p = append(p, part{text, name})
		pattern = rest
	}
}

// Has reports whether the pattern has a parameter.
func (p Pattern) Has(name string) bool {
	return name != "" && slices.ContainsFunc(p, func(x part) bool { return x.param == name })
}

// fill returns the pattern with the values of the parameters in their places.
func (p Pattern) fill(value func(name string) string) string {
	var b strings.Builder
	for _, x := range p {
		b.WriteString(x.text)
		if x.param != "" {
			b.WriteString(value(x.param))
		}
	}
	return b.String()
}
