package doccheck

import (
	"crypto/sha1" //nolint:gosec // Git names contents so
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Translations returns what is wrong with the Chinese pages: those in a directory zh, and those whose
// names end in .zh-CN.md. own are pages without an English one, of which only the links are checked.
//
// A note in the first lines of a page names its English page, and the version of it that was translated:
//
//	> [English](../production.md) · …`0123456789ab`…
//
// The page has the headings, blocks of code, paragraphs, items and cells of tables of the English one, in
// the same order, and in each of them the same code and the same links. A link leads to a Chinese page
// if there is one. Each text has a Chinese character, or only code and names, and no three words of English
// in a row; names are words that have no translation.
func (r *Repository) Translations(names []string, own ...string) (findings []string) {
	chinese := map[string]string{} // the Chinese page of each English one
	for _, d := range r.documents {
		if n, ok := noteOf(d); ok && isChinese(d.path) {
			chinese[n.original] = d.path
		}
	}
	for _, d := range r.documents {
		if !isChinese(d.path) {
			continue
		}
		findings = append(findings, linksToEnglish(d, chinese)...)
		if slices.Contains(own, d.path) {
			continue
		}
		findings = append(findings, untranslated(d, names)...)
		n, ok := noteOf(d)
		if !ok {
			findings = append(findings, finding(d, line{number: 1}, "no note names the English page and its version"))
			continue
		}
		now, err := r.version(n.original)
		i := slices.IndexFunc(r.documents, func(d *document) bool { return d.path == n.original })
		if err != nil || i < 0 {
			findings = append(findings, finding(d, n.line, "there is no English page %s: %v", n.original, err))
			continue
		}
		if now != n.version {
			findings = append(findings, finding(d, n.line, "%s has changed: make the changes of \"git diff %s %[1]s\" in this page, too;"+
				" then run \"go test ./examples/guides -run Translations -translated %[3]s\"", n.original, n.version, d.path))
		}
		findings = append(findings, differences(d, r.documents[i], chinese)...)
	}
	return findings
}

// Stamp returns the text of a Chinese page whose note has the present version of its English page.
func (r *Repository) Stamp(page string) (string, error) {
	i := slices.IndexFunc(r.documents, func(d *document) bool { return d.path == page })
	if i < 0 {
		return "", fmt.Errorf("no document %s", page)
	}
	n, ok := noteOf(r.documents[i])
	if !ok {
		return "", fmt.Errorf("%s has no note that names its English page and a version, such as 000000000000", page)
	}
	now, err := r.version(n.original)
	if err != nil {
		return "", err
	}
	text, err := fs.ReadFile(r.root, page)
	return strings.Replace(string(text), "`"+n.version+"`", "`"+now+"`", 1), err
}

// version returns the first digits of the name that Git gives to the content of a file, so that Git
// can show what has changed since.
func (r *Repository) version(name string) (string, error) {
	text, err := fs.ReadFile(r.root, name)
	if err != nil {
		return "", err
	}
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text)) //nolint:gosec // Git names contents so
	return hex.EncodeToString(sum[:])[:12], nil
}

func isChinese(name string) bool {
	return path.Base(path.Dir(name)) == "zh" || strings.HasSuffix(name, ".zh-CN.md")
}

// note is the line of a Chinese page that names its English page.
type note struct {
	line
	original, version string
}

var (
	noted     = regexp.MustCompile("^> \\[English\\]\\(([^)\\s]+)\\) .*`([0-9a-f]{12})`")
	languages = regexp.MustCompile(`^English · \[简体中文\]\([^)]+\)$`) // the line of an English page
)

func noteOf(d *document) (note, bool) {
	for _, l := range d.prose {
		if match := noted.FindStringSubmatch(l.text); match != nil && l.number <= 5 {
			return note{l, path.Join(path.Dir(d.path), match[1]), match[2]}, true
		}
	}
	return note{}, false
}

// linksToEnglish returns the links of a Chinese page that lead to an English one that has a translation.
func linksToEnglish(d *document, chinese map[string]string) (findings []string) {
	for _, l := range d.prose {
		for _, target := range targets(l.text) {
			file, _, _ := strings.Cut(target, "#")
			if to, ok := chinese[path.Join(path.Dir(d.path), file)]; ok && file != "" && !noted.MatchString(l.text) {
				findings = append(findings, finding(d, l, "the link %s leads to the English page of %s", target, to))
			}
		}
	}
	return findings
}

// differences returns the first place where a page has other texts or blocks than its English page, and
// the texts with other code or links.
func differences(d, english *document, chinese map[string]string) (findings []string) {
	ours, theirs := d.texts(), english.texts()
	for i := range max(len(ours), len(theirs)) {
		switch {
		case i == len(ours):
			return append(findings, finding(d, ours[i-1].line, "the page ends before the %s of %s:%d", theirs[i].kind, english.path, theirs[i].number))
		case i == len(theirs):
			return append(findings, finding(d, ours[i].line, "%s ends before this %s", english.path, ours[i].kind))
		}
		our, their := ours[i], theirs[i]
		if our.kind != their.kind {
			return append(findings, finding(d, our.line, "this %s is the %s in %s:%d", our.kind, their.kind, english.path, their.number))
		}
		if our.kind == "block" && our.text != their.text {
			findings = append(findings, finding(d, our.line, "the block is not that of %s:%d", english.path, their.number))
		}
		has, wants := our.marks(d.path, chinese), their.marks(english.path, chinese)
		if missing, more := without(wants, has), without(has, wants); len(missing)+len(more) > 0 {
			findings = append(findings, finding(d, our.line, "code and links of %s:%d are missing: %q, or are not there: %q", english.path, their.number, missing, more))
		}
	}
	return findings
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// text is what a reader sees as one: a heading of a level, a paragraph, an item of a list, the first cell
// of a row or another cell, a block of code.
type text struct {
	line
	kind string
}

var (
	described = regexp.MustCompile(`<[^<>]*\balt="([^"]*)"[^<>]*>`)
	elements  = regexp.MustCompile(`<[^<>]*>`)
	item      = regexp.MustCompile(`^\s*(?:[-*+]|\d+\.)\s`)
	rule      = regexp.MustCompile(`^\|[-:| ]*-[-:| ]*\|$`) // below the first row of a table
)

// texts returns the texts of a document, without the lines that lead to other languages.
func (d *document) texts() (all []text) {
	type part struct {
		line
		block bool
	}
	var parts []part
	for _, l := range d.prose {
		parts = append(parts, part{line: l})
	}
	for _, b := range d.blocks {
		joined := line{number: b.lines[0].number}
		for _, l := range b.lines {
			joined.text += l.text + "\n"
		}
		parts = append(parts, part{joined, true})
	}
	slices.SortFunc(parts, func(a, b part) int { return a.number - b.number })
	open, comment := false, false // a paragraph or an item; a comment of several lines
	add := func(kind string, l line) { all, open = append(all, text{l, kind}), false }
	for _, p := range parts {
		l := p.line
		if p.block {
			add("block", l)
			continue
		}
		l.text, comment = visible(l.text, comment)
		heading := headings.FindStringSubmatch(l.text)
		switch trimmed := strings.TrimSpace(l.text); {
		case trimmed == "", rule.MatchString(trimmed), noted.MatchString(trimmed), languages.MatchString(trimmed):
			open = false
		case heading != nil:
			add("heading "+heading[1], line{l.number, heading[2]})
		case trimmed[0] == '|':
			kind := "row"
			cells := strings.ReplaceAll(strings.Trim(trimmed, "|"), `\|`, "\x00")
			for cell := range strings.SplitSeq(cells, "|") {
				add(kind, line{l.number, strings.ReplaceAll(cell, "\x00", "|")})
				kind = "cell"
			}
		case item.MatchString(l.text):
			add("item", l)
			open = true
		case open:
			all[len(all)-1].text += " " + trimmed
		default:
			add("paragraph", l)
			open = true
		}
	}
	return all
}

// visible returns a line without comments, and whether it ends in one.
func visible(text string, comment bool) (seen string, ends bool) {
	for rest, more := text, true; more; comment = comment != more {
		mark := "<!--"
		if comment {
			mark = "-->"
		}
		text, rest, more = strings.Cut(rest, mark)
		if !comment {
			seen += text
		}
	}
	return seen, comment
}

// marks returns what is the same in every language: code, and where links lead, without the anchors of
// pages that have a translation.
func (t text) marks(from string, chinese map[string]string) (all []string) {
	if t.kind == "block" {
		return nil
	}
	all = codeSpan.FindAllString(t.text, -1)
	outside := codeSpan.ReplaceAllString(t.text, "")
	for _, pattern := range linked {
		for _, match := range pattern.FindAllStringSubmatch(outside, -1) {
			all = append(all, leads(from, match[1], chinese))
		}
	}
	return all
}

// leads returns where a link leads, in English.
func leads(from, target string, chinese map[string]string) string {
	u, err := url.Parse(target)
	if err != nil || absolute.MatchString(target) {
		return target
	}
	file := from
	if u.Path != "" {
		file = path.Join(path.Dir(from), u.Path)
	}
	for english, translated := range chinese {
		if file == english || file == translated {
			return english
		}
	}
	return file + "#" + u.Fragment
}

var (
	han  = regexp.MustCompile(`\p{Han}`)
	word = regexp.MustCompile(`[A-Za-z](?:[\w./+'’-]*\w)?`)
	gap  = regexp.MustCompile(`^[ ,;:]+$`)
)

// untranslated returns the texts of a page that are in English.
func untranslated(d *document, names []string) (findings []string) {
	for _, t := range d.texts() {
		if t.kind == "block" {
			continue
		}
		seen := codeSpan.ReplaceAllString(t.text, " ` ")
		for _, pattern := range []*regexp.Regexp{described, inlineLinks} {
			seen = pattern.ReplaceAllString(seen, "$1")
		}
		seen = elements.ReplaceAllString(seen, "")
		inRow, most, end := 0, 0, 0
		for _, at := range word.FindAllStringIndex(seen, -1) {
			switch {
			case slices.Contains(names, seen[at[0]:at[1]]):
				inRow = 0
			case gap.MatchString(seen[end:at[0]]):
				inRow++
			default:
				inRow = 1
			}
			most, end = max(most, inRow), at[1]
		}
		if most >= 3 || most > 0 && !han.MatchString(seen) {
			findings = append(findings, finding(d, t.line, "this is not in Chinese: %s", strings.TrimSpace(seen)))
		}
	}
	return findings
}
