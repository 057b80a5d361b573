package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A source is one Go file of this module.
type source struct {
	path string // from the root of the checkout, slashes
	file *ast.File
	set  *token.FileSet
}

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.path, s.set.Position(n.Pos()).Line)
}

// survey parses every Go file below fsys, whatever its build tags, but enters no
// module of its own, no testdata and nothing hidden.
func survey(fsys fs.FS) ([]source, error) {
	var found []source
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return enter(fsys, name)
		case path.Ext(name) != ".go":
			return nil
		}
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parsing %s: %w", name, err)
		}
		found = append(found, source{path: name, file: file, set: set})
		return nil
	})
	return found, err
}

func enter(fsys fs.FS, dir string) error {
	if dir == "." {
		return nil
	}
	base := path.Base(dir)
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" {
		return fs.SkipDir
	}
	if _, err := fs.Stat(fsys, path.Join(dir, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

// complaints returns what is wrong with one file, in the order of its lines.
func complaints(s source) []string {
	name, r, ok := roomOf(s.path)
	if !ok {
		return []string{s.path + " is in no room: add its folder to rooms, with what it may import"}
	}
	found := wrongImports(s, name, r)
	if !s.isTest() && (r.pure || holdsJudgement(s.path)) {
		found = append(found, impurities(s)...)
	}
	if strings.HasPrefix(s.path, "services/") && s.file.Name.Name == "main" && name != "services/millrace" {
		found = append(found, s.path+" is a program: services/millrace is the only one")
	}
	return found
}

func wrongImports(s source, name string, r room) []string {
	var found []string
	for _, spec := range s.file.Imports {
		imp, _ := strconv.Unquote(spec.Path.Value)
		switch {
		case isStandard(imp) || r.anything:
		case !s.isTest() && r.floor < 6 && covers(kits, imp) && !covers(kits, module+name):
			found = append(found, fmt.Sprintf("%s imports %s, which is for tests", s.at(spec), imp))
		case !s.isTest() && holdsJudgement(s.path) && !covers(judgementImports, imp):
			found = append(found, fmt.Sprintf("%s imports %s, which a file of judgement may not", s.at(spec), imp))
		case !allowed(s, name, r, imp):
			found = append(found, fmt.Sprintf("%s imports %s, which room %s may not", s.at(spec), imp, name))
		}
	}
	return found
}

func allowed(s source, name string, r room, imp string) bool {
	may := r.may
	switch {
	case s.isTest() && r.pure:
		may = join(may, testsOfPure)
	case s.isTest():
		may = join(may, testsOfRest)
	}
	if covers(may, imp) {
		return true
	}
	// A subfolder belongs to its parent unless it is a room with a list of its own.
	folder, own := strings.CutPrefix(imp, module)
	within, _, ok := roomOf(folder)
	return own && ok && (within == name || covers(may, module+within))
}

// isStandard goes by the first element: only a domain has a dot in it.
func isStandard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

func holdsJudgement(file string) bool {
	return slices.ContainsFunc(judgementFiles, func(pattern string) bool {
		ok, err := path.Match(pattern, path.Base(file))
		return ok && err == nil
	})
}

// impurities finds what a pure file would see or change of the world.
func impurities(s source) []string {
	var found []string
	names := map[string]string{} // local name → import path
	for _, spec := range s.file.Imports {
		imp, _ := strconv.Unquote(spec.Path.Value)
		if covers(impureImports, imp) {
			found = append(found, fmt.Sprintf("%s imports %s, which pure code may not", s.at(spec), imp))
		}
		names[localName(spec, imp)] = imp
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, s.at(n)+" starts a goroutine, which pure code may not")
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); ok && isImpure(names[pkg.Name], n.Sel.Name) {
				found = append(found, fmt.Sprintf("%s uses %s.%s, which pure code may not", s.at(n), pkg.Name, n.Sel.Name))
			}
		}
		return true
	})
	return found
}

func isImpure(imp, name string) bool {
	switch imp {
	case "time":
		return slices.Contains(clock, name)
	case "math/rand/v2":
		return !slices.Contains(seeded, name)
	default:
		return false
	}
}

func localName(spec *ast.ImportSpec, imp string) string {
	switch {
	case spec.Name != nil:
		return spec.Name.Name
	case imp == "math/rand/v2":
		return "rand"
	default:
		return path.Base(imp)
	}
}

// undocumented returns the packages in which no file says what the package is
// for. A folder of nothing but generated code speaks through its source.
func undocumented(sources []source) []string {
	documented := map[string]bool{}
	for _, s := range sources {
		if ast.IsGenerated(s.file) {
			continue
		}
		pkg := path.Dir(s.path) + " (" + strings.TrimSuffix(s.file.Name.Name, "_test") + ")"
		documented[pkg] = documented[pkg] || s.file.Doc.Text() != ""
	}
	var found []string
	for pkg, ok := range documented {
		if !ok {
			found = append(found, pkg+" has no package comment: say what it is for, and what it refuses to do")
		}
	}
	slices.Sort(found)
	return found
}
