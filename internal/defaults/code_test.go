package defaults_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/format"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/lockkeeper/lockkeeper/"

// stubs are what the values of this repository need of other packages. Without them the packages
// that are imported need not be there: what uses them has no value.
var stubs = map[string]string{
	"time": `package time
type Duration int64
const (
	Nanosecond Duration = 1
	Microsecond = 1000 * Nanosecond
	Millisecond = 1000 * Microsecond
	Second = 1000 * Millisecond
	Minute = 60 * Second
	Hour = 60 * Minute
)`,
	"math": `package math
const (
	MaxInt32 = 1<<31 - 1
	MaxInt64 = 1<<63 - 1
	MaxUint16 = 1<<16 - 1
)`,
}

// code is the source of the repository, with the values of its constants.
type code struct {
	files    fs.FS
	fset     *token.FileSet
	packages map[string]*pkg // by directory
	public   []*pkg          // that applications import
	texts    []string        // literals
}

type pkg struct {
	dir      string
	files    []*ast.File
	types    *types.Package
	info     types.Info
	declared map[string]*declared // by name: F, T, T.Method, T.Field
}

// declared is something that a package declares at its top.
type declared struct {
	doc      string
	exported bool
	fn       *ast.FuncDecl // nil unless it is a function or a method
	constant bool
	function bool // the type of functions
}

// read reads all packages of the repository.
func read(files fs.FS) (*code, error) {
	c := &code{files: files, fset: token.NewFileSet(), packages: make(map[string]*pkg)}
	err := fs.WalkDir(files, ".", func(dir string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !e.IsDir():
			return nil
		case dir != "." && strings.HasPrefix(e.Name(), "."), slices.Contains(notOfServices, dir):
			return fs.SkipDir
		}
		p, err := c.load(dir)
		if err != nil || p == nil {
			return err
		}
		if p.isPublic() {
			c.public = append(c.public, p)
		}
		return nil
	})
	return c, err
}

// notOfServices are directories whose packages no service imports: core/storetest is for authors of
// stores.
var notOfServices = []string{
	"benchmarks", "cmd", "core/storetest", "docs", "examples", "internal/integration", "internal/testing",
}

// isPublic reports whether applications import a package.
func (p *pkg) isPublic() bool { return !slices.Contains(strings.Split(p.dir, "/"), "internal") }

// load returns the package of a directory, or nil if there is none.
func (c *code) load(dir string) (*pkg, error) {
	if p, ok := c.packages[dir]; ok {
		return p, nil
	}
	entries, err := fs.ReadDir(c.files, dir)
	if err != nil {
		return nil, err
	}
	p := &pkg{dir: dir, declared: make(map[string]*declared)}
	p.info.Types = make(map[ast.Expr]types.TypeAndValue)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		text, err := fs.ReadFile(c.files, path.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(c.fset, path.Join(dir, e.Name()), text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, f)
	}
	if len(p.files) == 0 {
		return nil, nil
	}
	c.packages[dir] = p
	config := types.Config{Importer: c, Error: func(error) {}} // of packages that are not read
	p.types, _ = config.Check(module+dir, c.fset, p.files, &p.info)
	for _, f := range p.files {
		c.readTexts(f)
		p.declare(f)
	}
	return p, nil
}

// Import implements types.Importer.
func (c *code) Import(name string) (*types.Package, error) {
	if dir, ok := strings.CutPrefix(name, module); ok {
		p, err := c.load(dir)
		if err != nil || p == nil {
			return nil, fmt.Errorf("no package %s: %w", dir, err)
		}
		return p.types, nil
	}
	if text, ok := stubs[name]; ok {
		f, err := parser.ParseFile(c.fset, name, text, 0)
		if err != nil {
			return nil, err
		}
		return new(types.Config).Check(name, c.fset, []*ast.File{f}, nil)
	}
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

func (c *code) readTexts(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		if _, ok := n.(*ast.ImportSpec); ok {
			return false
		}
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				c.texts = append(c.texts, text)
			}
		}
		return true
	})
}

func (p *pkg) declare(f *ast.File) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name, exported := d.Name.Name, d.Name.IsExported()
			if d.Recv != nil {
				of := receiver(d.Recv.List[0].Type)
				name, exported = of+"."+name, exported && ast.IsExported(of)
			}
			p.declared[name] = &declared{doc: d.Doc.Text(), exported: exported, fn: d}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				p.declareSpec(d, spec)
			}
		}
	}
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func (p *pkg) declareSpec(d *ast.GenDecl, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			p.declared[name.Name] = &declared{
				doc: d.Doc.Text() + s.Doc.Text() + s.Comment.Text(), exported: name.IsExported(), constant: d.Tok == token.CONST,
			}
		}
	case *ast.TypeSpec:
		doc := s.Doc.Text()
		if !d.Lparen.IsValid() {
			doc += d.Doc.Text()
		}
		_, function := s.Type.(*ast.FuncType)
		p.declared[s.Name.Name] = &declared{doc: doc, exported: s.Name.IsExported(), function: function}
		fields, ok := s.Type.(*ast.StructType)
		if !ok {
			return
		}
		for _, f := range fields.Fields.List {
			for _, name := range f.Names {
				p.declared[s.Name.Name+"."+name.Name] = &declared{
					doc: f.Doc.Text() + f.Comment.Text(), exported: s.Name.IsExported() && name.IsExported(),
				}
			}
		}
	}
}

// find returns what a reference names: the directory of its package, a dot, and the name.
func (c *code) find(ref string) (*pkg, string, *declared) {
	slash := strings.LastIndexByte(ref, '/')
	dot := strings.IndexByte(ref[slash+1:], '.')
	if dot < 0 {
		return nil, "", nil
	}
	dir, name := ref[:slash+1+dot], ref[slash+dot+2:]
	p := c.packages[dir]
	if p == nil {
		return nil, name, nil
	}
	return p, name, p.declared[name]
}

// refs returns the references of what the public packages declare and keep returns true for.
func (c *code) refs(keep func(p *pkg, name string, d *declared) bool) []string {
	var found []string
	for _, p := range c.public {
		for _, name := range slices.Sorted(maps.Keys(p.declared)) {
			if d := p.declared[name]; d.exported && keep(p, name, d) {
				found = append(found, p.dir+"."+name)
			}
		}
	}
	return found
}

// isOption reports whether something is a function that returns an option.
func isOption(d *declared) bool {
	if d.fn == nil || d.fn.Recv != nil || d.fn.Type.Results == nil || len(d.fn.Type.Results.List) != 1 {
		return false
	}
	switch t := d.fn.Type.Results.List[0].Type.(type) {
	case *ast.Ident:
		return strings.HasSuffix(t.Name, "Option")
	case *ast.SelectorExpr:
		return strings.HasSuffix(t.Sel.Name, "Option")
	}
	return false
}

// value is a value of the code: a constant, or the text of an expression.
type value struct {
	constant constant.Value // nil if it is none
	duration bool
	text     string
}

func valueOf(tv types.TypeAndValue, e ast.Expr) value {
	if tv.Value == nil {
		var text strings.Builder
		_ = format.Node(&text, token.NewFileSet(), e) // into a Builder
		return value{text: text.String()}
	}
	named, ok := tv.Type.(*types.Named)
	return value{constant: tv.Value, duration: ok && named.Obj().Name() == "Duration", text: tv.Value.ExactString()}
}

// at returns the value of a constant, or of what a function sets: its directory, its name and the
// field, such as core/guard.defaults.ttl.
func (c *code) at(ref string) (value, error) {
	p, name, d := c.find(ref)
	if p == nil {
		return value{}, fmt.Errorf("%s: no such package", ref)
	}
	if d != nil && d.constant {
		if o, ok := p.types.Scope().Lookup(name).(*types.Const); ok && o.Val().Kind() != constant.Unknown {
			named, ok := o.Type().(*types.Named)
			return value{o.Val(), ok && named.Obj().Name() == "Duration", o.Val().ExactString()}, nil
		}
		return value{}, fmt.Errorf("%s: the constant has no value that is found", ref)
	}
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return value{}, fmt.Errorf("%s: no such constant", ref)
	}
	v, n := p.set(name[:dot], name[dot+1:])
	if n != 1 {
		return value{}, fmt.Errorf("%s: it is set %d times", ref, n)
	}
	return v, nil
}

// set returns the value that a function sets a field to, and how often it does.
func (p *pkg) set(fn, field string) (v value, times int) {
	d := p.declared[fn]
	if d == nil || d.fn == nil || field == "" {
		return value{}, 0
	}
	ast.Inspect(d.fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == field && !isCopy(n.Value) {
				v, times = valueOf(p.info.Types[n.Value], n.Value), times+1
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				s, ok := to.(*ast.SelectorExpr)
				if ok && s.Sel.Name == field && n.Tok == token.ASSIGN && len(n.Lhs) == len(n.Rhs) && !isCopy(n.Rhs[i]) {
					v, times = valueOf(p.info.Types[n.Rhs[i]], n.Rhs[i]), times+1
				}
			}
		}
		return true
	})
	return v, times
}

// isCopy reports whether an expression copies a setting on, or adds to it.
func isCopy(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		x, ok := e.X.(*ast.Ident)
		return ok && x.Name == "c"
	case *ast.CallExpr:
		fn, ok := e.Fun.(*ast.Ident)
		return ok && fn.Name == "append"
	}
	return false
}

// isNamed reports whether a constant is one of a set of a type of its own.
func (c *code) isNamed(ref string) bool {
	p, name, _ := c.find(ref)
	named, ok := p.types.Scope().Lookup(name).Type().(*types.Named)
	return ok && named.Obj().Name() != "Duration"
}

// sites are the functions that set the defaults of a package's options, where these are not New and
// defaults.
var sites = map[string][]string{
	"core/lock":             {"core/internal/lease.NewConfig", "core/lock.New"},
	"core/memstore":         {"core/memstore.New"},
	"core/pgstore":          {"core/pgstore.newStore"},
	"core/policy":           {"internal/middleware/setting.Of"},
	"core/presence":         {"core/presence.Start"},
	"core/rules":            {"core/rules.newRules"},
	"core/semaphore":        {"core/internal/lease.NewConfig", "core/semaphore.New", "core/semaphore.NewLatch"},
	"connectmw/idempotency": {"internal/middleware/setting.Of"},
	"grpcmw/idempotency":    {"internal/middleware/setting.Of"},
	"migrate/redsync":       {"migrate/redsync.Redsync.NewMutex"},
	"nethttp/idempotency":   {"internal/middleware/setting.Of", "nethttp/idempotency.Transport"},
}

// unset returns the value of what an option sets, without the option. It returns false if the option
// does not set a field itself.
func (c *code) unset(ref string) (value, bool) {
	p, name, d := c.find(ref)
	var to *ast.SelectorExpr
	ast.Inspect(d.fn.Body, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if ok && to == nil && a.Tok == token.ASSIGN {
			to, _ = a.Lhs[0].(*ast.SelectorExpr)
		}
		return to == nil
	})
	if to == nil {
		return value{}, false
	}
	of := sites[p.dir]
	if of == nil {
		of = []string{p.dir + ".defaults", p.dir + ".New"}
	}
	for _, site := range of {
		q, fn, _ := c.find(site)
		if q == nil {
			continue
		}
		if v, n := q.set(fn, to.Sel.Name); n == 1 {
			return v, true
		} else if n > 1 {
			return value{text: fmt.Sprintf("%s sets it %d times", name, n)}, true
		}
	}
	return zero(p.info.Types[to].Type), true
}

// zero returns the zero value of a type.
func zero(t types.Type) value {
	if t != nil {
		if b, ok := t.Underlying().(*types.Basic); ok {
			switch {
			case b.Info()&types.IsBoolean != 0:
				return value{constant: constant.MakeBool(false), text: "false"}
			case b.Info()&types.IsNumeric != 0:
				return value{text: "0"}
			}
		}
	}
	return value{text: "nil"}
}
