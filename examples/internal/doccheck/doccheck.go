// Package doccheck checks the Markdown files of a repository: that their Go code is compiled, that
// their links resolve, that their figures are those of the benchmarks, and that Chinese pages follow
// their English ones.
//
// Each check returns its findings, one a line: the file, the number of the line, and what is wrong.
package doccheck

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Repository is the Markdown files and the Go files of a repository.
type Repository struct {
	root      fs.FS
	documents []*document // sorted by path
	sources   []source
}

// Read reads the files below root. It skips directories whose names begin with a dot, testdata, and
// those in skip.
func Read(root fs.FS, skip ...string) (*Repository, error) {
	r := &Repository{root: root}
	return r, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if base := path.Base(name); name != "." && (base[0] == '.' || base == "testdata" || slices.Contains(skip, name)) {
				return fs.SkipDir
			}
			return nil
		}
		kind := path.Ext(name)
		if kind != ".md" && kind != ".go" {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		if kind == ".md" {
			r.documents = append(r.documents, parse(name, string(text)))
		} else {
			r.sources = append(r.sources, newSource(name, string(text)))
		}
		return nil
	})
}

// Documents returns the paths of the Markdown files.
func (r *Repository) Documents() (paths []string) {
	for _, d := range r.documents {
		paths = append(paths, d.path)
	}
	return paths
}

// finding is what is wrong with a line of a document.
func finding(d *document, l line, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", d.path, l.number, fmt.Sprintf(format, args...))
}

// line is a line of a document.
type line struct {
	number int // from 1
	text   string
}

// block is a fenced block of code.
type block struct {
	language string
	lines    []line // the first one is the fence
}

// document is a Markdown file.
type document struct {
	path   string
	blocks []block
	prose  []line // what is outside of blocks
}

func parse(name, text string) *document {
	d := &document{path: name}
	fence, number := "", 0
	for text := range strings.Lines(text) {
		number++
		l := line{number, strings.TrimRight(text, "\r\n")}
		marks, info := fenceOf(l.text)
		switch {
		case fence != "" && strings.HasPrefix(marks, fence) && info == "":
			fence = ""
		case fence != "":
			last := &d.blocks[len(d.blocks)-1]
			last.lines = append(last.lines, l)
		case marks != "":
			fence = marks
			language, _, _ := strings.Cut(info, " ")
			d.blocks = append(d.blocks, block{language, []line{l}})
		default:
			d.prose = append(d.prose, l)
		}
	}
	return d
}

// fenceOf returns the marks of a line that begins or ends a block, and the text after them; nothing
// for other lines.
func fenceOf(text string) (marks, info string) {
	text = strings.TrimSpace(text)
	for _, mark := range []string{"`", "~"} {
		info := strings.TrimLeft(text, mark)
		if n := len(text) - len(info); n >= 3 && !strings.Contains(info, "`") {
			return text[:n], strings.TrimSpace(info)
		}
	}
	return "", ""
}
