package doccheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Complete returns what a reader lacks who copies the Go code of the documents below a directory: packages
// that the code uses, and functions, types and values that its files declare outside of it. A document
// shows an import, or a declaration, in a block, or names the declaration in its text as `code`.
func (r *Repository) Complete(dir string) (findings []string) {
	for _, d := range r.documents {
		if strings.HasPrefix(d.path, dir+"/") {
			findings = append(findings, r.lacks(d)...)
		}
	}
	return findings
}

// lacks returns what is missing in a document.
func (r *Repository) lacks(d *document) (findings []string) {
	shown := map[string]map[int]bool{} // lines of each file
	for _, b := range d.blocks {
		if b.language != "go" {
			continue
		}
		for _, s := range r.sources {
			at := s.find(b)
			if at == nil {
				continue
			}
			if shown[s.path] == nil {
				shown[s.path] = map[int]bool{}
			}
			maps.Copy(shown[s.path], at)
			break
		}
	}
	missing := map[string]string{} // the file that uses it
	for _, file := range slices.Sorted(maps.Keys(shown)) {
		for what, declaration := range r.uses(file, shown[file]) {
			if !d.has(what, declaration) {
				missing[what] = file
			}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(missing)) {
		findings = append(findings, finding(d, line{number: 1}, "code uses %s of %s, and the page has neither it nor `%[1]s` in its text", what, missing[what]))
	}
	return findings
}

// has reports whether a document shows the line of an import or a declaration, or names it in its text.
func (d *document) has(what, declaration string) bool {
	return slices.ContainsFunc(d.blocks, func(b block) bool {
		return b.language == "go" && slices.ContainsFunc(b.lines, func(l line) bool { return plain(l.text) == declaration })
	}) || slices.ContainsFunc(d.prose, func(l line) bool { return strings.Contains(l.text, "`"+what+"`") })
}

// find returns the numbers of a file's lines that a block shows; nil if it does not show this file.
func (s *source) find(b block) map[int]bool {
	var lines []line
	for _, l := range b.lines[1:] {
		if l.text = plain(l.text); l.text != "" {
			lines = append(lines, l)
		}
	}
	if len(lines) == 0 || s.matches(lines) < len(lines) {
		return nil
	}
	found := map[int]bool{}
	next := 0
	for len(lines) > 0 {
		end := slices.IndexFunc(lines, func(l line) bool { return l.text == anyLines })
		if end < 0 {
			end = len(lines)
		}
		for common(s.lines[next:], lines[:end]) < end {
			next++
		}
		for range end {
			found[s.numbers[next]] = true
			next++
		}
		lines = lines[min(end+1, len(lines)):]
	}
	return found
}

// uses returns the imports, and the names that its package declares, in lines of a file, with the lines
// that import and declare them.
func (r *Repository) uses(file string, lines map[int]bool) map[string]string {
	files := token.NewFileSet()
	texts := map[string][]string{}
	var its string // the name of the package
	var parsed []*ast.File
	for _, s := range r.sources {
		if path.Dir(s.path) != path.Dir(file) {
			continue
		}
		f, err := parser.ParseFile(files, s.path, s.text, parser.SkipObjectResolution)
		if err != nil {
			continue // the compiler says so
		}
		if s.path == file {
			its = f.Name.Name
		}
		parsed, texts[s.path] = append(parsed, f), strings.Split(s.text, "\n")
	}
	parsed = slices.DeleteFunc(parsed, func(f *ast.File) bool { return f.Name.Name != its })
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: empty{}, Error: func(error) {}} // what is in other packages is not of interest
	pkg, _ := config.Check(path.Dir(file), files, parsed, &info)     // its error is the first of those
	all := map[string]string{}
	for ident, object := range info.Uses {
		if at := files.Position(ident.Pos()); at.Filename != file || !lines[at.Line] {
			continue
		}
		declared := files.Position(object.Pos())
		switch of, isImport := object.(*types.PkgName); {
		case isImport:
			name := strconv.Quote(of.Imported().Path())
			all[name] = plain(texts[declared.Filename][declared.Line-1])
		case object.Parent() == pkg.Scope():
			all[object.Name()] = plain(texts[declared.Filename][declared.Line-1])
		}
	}
	return all
}

// empty imports packages without anything in them.
type empty struct{}

func (empty) Import(name string) (*types.Package, error) {
	base := path.Base(name)
	if len(base) > 1 && base[0] == 'v' && base[1] >= '0' && base[1] <= '9' {
		base = path.Base(path.Dir(name))
	}
	p := types.NewPackage(name, strings.TrimPrefix(base, "go-"))
	p.MarkComplete()
	return p, nil
}
