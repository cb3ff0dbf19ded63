package doccheck

import (
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Links returns the relative links that lead to no file, or to no heading or anchor of a Markdown file.
func (r *Repository) Links() (findings []string) {
	anchors := map[string]map[string]bool{}
	for _, d := range r.documents {
		for _, l := range d.prose {
			for _, target := range targets(l.text) {
				if wrong := r.follow(d.path, target, anchors); wrong != "" {
					findings = append(findings, finding(d, l, "the link %s %s", target, wrong))
				}
			}
		}
	}
	return findings
}

var (
	codeSpan = regexp.MustCompile("`+[^`]*`+")
	// linked is the target of an inline link or an image, of a reference, and of an HTML element.
	linked = []*regexp.Regexp{
		regexp.MustCompile(`\]\(\s*<?([^\s)>]+)`),
		regexp.MustCompile(`^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)`),
		regexp.MustCompile(`\b(?:href|src|srcset)="([^"\s]+)`),
	}
	absolute = regexp.MustCompile(`^([a-zA-Z][a-zA-Z0-9+.-]*:|//)`)
)

// targets returns the relative targets of the links in a line.
func targets(text string) (all []string) {
	text = codeSpan.ReplaceAllString(text, "")
	for _, pattern := range linked {
		for _, match := range pattern.FindAllStringSubmatch(text, -1) {
			if !absolute.MatchString(match[1]) {
				all = append(all, match[1])
			}
		}
	}
	return all
}

// follow returns what is wrong with a link in the document from, or nothing.
func (r *Repository) follow(from, target string, anchors map[string]map[string]bool) string {
	u, err := url.Parse(target)
	if err != nil {
		return "cannot be read: " + err.Error()
	}
	file := path.Join(path.Dir(from), u.Path)
	switch {
	case u.Path == "":
		file = from
	case u.Path[0] == '/':
		file = strings.TrimPrefix(path.Clean(u.Path), "/")
	}
	info, err := fs.Stat(r.root, file)
	switch {
	case err != nil:
		return "leads to no file: " + file
	case u.Fragment == "":
		return ""
	case info.IsDir() || path.Ext(file) != ".md":
		return "has an anchor, and leads to no Markdown file"
	}
	if anchors[file] == nil {
		text, err := fs.ReadFile(r.root, file)
		if err != nil {
			return err.Error()
		}
		anchors[file] = parse(file, string(text)).anchors()
	}
	if !anchors[file][u.Fragment] {
		return "leads to no heading or anchor of " + file
	}
	return ""
}

var (
	headings    = regexp.MustCompile(`^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$`) // level, text
	named       = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	inlineLinks = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

// anchors returns what links may have after a #: headings as GitHub names them, and <a id="…">.
func (d *document) anchors() map[string]bool {
	all, times := map[string]bool{}, map[string]int{}
	for _, l := range d.prose {
		for _, match := range named.FindAllStringSubmatch(l.text, -1) {
			all[match[1]] = true
		}
		heading := headings.FindStringSubmatch(l.text)
		if heading == nil {
			continue
		}
		name := slug(heading[2])
		if n := times[name]; n > 0 {
			all[name+"-"+strconv.Itoa(n)] = true
		} else {
			all[name] = true
		}
		times[name]++
	}
	return all
}

// slug returns the anchor of a heading's text.
func slug(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == ' ':
			return '-'
		case c == '-' || c == '_' || unicode.In(c, unicode.L, unicode.M, unicode.N):
			return unicode.ToLower(c)
		}
		return -1
	}, inlineLinks.ReplaceAllString(text, "$1"))
}
