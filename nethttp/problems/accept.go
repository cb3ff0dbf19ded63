package problems

import (
	"mime"
	"strconv"
	"strings"
)

// The forms of a page. Of equally preferred forms a client gets the first, so that one without
// preferences gets plain text.
const (
	text = iota
	jsonText
	htmlText
	forms
)

// ranges are the media ranges (RFC 9110, section 12.5.1) that match each form. Of those that a
// client names, the last one counts.
var ranges = [forms][]string{
	text:     {"*/*", "text/*", "text/plain"},
	jsonText: {"*/*", "application/*", "application/json"},
	htmlText: {"*/*", "text/*", "text/html"},
}

// maxRanges bounds the media ranges of a request, so that a long field costs no time.
const maxRanges = 32

// preferred returns the form that a request's Accept fields prefer, and text if they accept none:
// an explanation in another form is of more use than 406.
func preferred(fields []string) int {
	quality := make(map[string]float64)
	for _, element := range strings.SplitN(strings.Join(fields, ","), ",", maxRanges+1) { // the rest is not a range
		name, params, err := mime.ParseMediaType(element)
		if err != nil {
			continue
		}
		q := 1.0
		if v, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(v, 64); err != nil || !(q >= 0 && q <= 1) {
				continue
			}
		}
		quality[name] = q
	}
	best, most := text, 0.0
	for form, matching := range ranges {
		q := 0.0
		for _, name := range matching {
			if v, ok := quality[name]; ok {
				q = v
			}
		}
		if q > most {
			best, most = form, q
		}
	}
	return best
}
