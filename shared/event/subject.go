package event

import (
	"fmt"
	"strconv"
	"strings"
)

// Subjects have the shape
//
//	<root>.<kind>.<pk>.<pn>.<namespace|_>.<name>
//
// and bookmarks of slice i
//
//	<root>.<kind>.<i>.<i>._.~
//
// which match both the filter of pk = i and that of pn = i. No encoded name is
// "~", so a bookmark never collides with an object. root is itself
// "k8s.<cluster>".

const (
	noNamespace  = "_"
	bookmarkName = "~"
	hexDigits    = "0123456789ABCDEF"
)

// Root returns the first tokens of every subject of a cluster.
func Root(cluster string) string { return "k8s." + encode(cluster) }

// Subject returns where the object lives on the bus, for life: pk and pn are
// the partitions of its key and of its namespace.
func Subject(root string, kind Kind, key Key, pk, pn int) string {
	namespace := noNamespace
	if key.Namespace != "" {
		namespace = encode(key.Namespace)
	}
	return subject(root, kind, pk, pn, namespace, encode(key.Name))
}

// BookmarkSubject returns where the bookmarks of slice i live.
func BookmarkSubject(root string, kind Kind, i int) string {
	return subject(root, kind, i, i, noNamespace, bookmarkName)
}

func subject(root string, kind Kind, pk, pn int, namespace, name string) string {
	var b strings.Builder
	b.Grow(len(root) + len(kind) + len(namespace) + len(name) + 12)
	b.WriteString(root)
	b.WriteByte('.')
	b.WriteString(encode(string(kind)))
	b.WriteByte('.')
	b.WriteString(strconv.Itoa(pk))
	b.WriteByte('.')
	b.WriteString(strconv.Itoa(pn))
	b.WriteByte('.')
	b.WriteString(namespace)
	b.WriteByte('.')
	b.WriteString(name)
	return b.String()
}

// KeyFilter matches the objects of kind whose pk is i, and the bookmarks of i.
func KeyFilter(root string, kind Kind, i int) string {
	return fmt.Sprintf("%s.%s.%d.>", root, encode(string(kind)), i)
}

// NamespaceFilter matches the objects of kind whose pn is i, and the bookmarks
// of i.
func NamespaceFilter(root string, kind Kind, i int) string {
	return fmt.Sprintf("%s.%s.*.%d.>", root, encode(string(kind)), i)
}

// KindFilter matches everything of kind.
func KindFilter(root string, kind Kind) string {
	return fmt.Sprintf("%s.%s.>", root, encode(string(kind)))
}

// Place is what a subject says.
type Place struct {
	Kind     Kind
	Key      Key // zero for a bookmark
	PK, PN   int
	Bookmark bool
}

// ParseSubject is the inverse of Subject and BookmarkSubject. It refuses what
// they cannot have produced.
func ParseSubject(root, s string) (Place, error) {
	rest, ok := strings.CutPrefix(s, root+".")
	if !ok {
		return Place{}, fmt.Errorf("parsing subject %q: not below %s", s, root)
	}
	tokens := strings.Split(rest, ".")
	if len(tokens) != 5 {
		return Place{}, fmt.Errorf("parsing subject %q: %d tokens below the root, want 5", s, len(tokens))
	}
	kind, err := decode(tokens[0])
	if err != nil {
		return Place{}, fmt.Errorf("parsing subject %q: %w", s, err)
	}
	p := Place{Kind: Kind(kind)}
	if p.PK, err = number(tokens[1]); err != nil {
		return Place{}, fmt.Errorf("parsing subject %q: %w", s, err)
	}
	if p.PN, err = number(tokens[2]); err != nil {
		return Place{}, fmt.Errorf("parsing subject %q: %w", s, err)
	}
	if tokens[4] == bookmarkName {
		p.Bookmark = true
		if tokens[3] != noNamespace || p.PK != p.PN {
			return Place{}, fmt.Errorf("parsing subject %q: not the place of a bookmark", s)
		}
		return p, nil
	}
	if tokens[3] != noNamespace {
		if p.Key.Namespace, err = decode(tokens[3]); err != nil {
			return Place{}, fmt.Errorf("parsing subject %q: %w", s, err)
		}
		if p.Key.Namespace == "" {
			return Place{}, fmt.Errorf("parsing subject %q: no namespace is spelled %q", s, noNamespace)
		}
	}
	if p.Key.Name, err = decode(tokens[4]); err != nil {
		return Place{}, fmt.Errorf("parsing subject %q: %w", s, err)
	}
	return p, nil
}

// number parses a partition as Itoa prints it: no sign, no leading zero.
func number(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || strconv.Itoa(n) != s {
		return 0, fmt.Errorf("%q is no partition", s)
	}
	return n, nil
}

// encode writes s as one token: [a-z0-9-] as is, "." as "/", any other byte as
// "=HH". An empty string, which no object name is, becomes "=".
func encode(s string) string {
	if s == "" {
		return "="
	}
	plain := true
	for i := range len(s) {
		if !isPlain(s[i]) {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 8)
	for i := range len(s) {
		switch c := s[i]; {
		case isPlain(c):
			b.WriteByte(c)
		case c == '.':
			b.WriteByte('/')
		default:
			b.WriteByte('=')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String()
}

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-'
}

// decode is the inverse of encode and refuses every other spelling, so that a
// name has exactly one token.
func decode(token string) (string, error) {
	if token == "=" {
		return "", nil
	}
	if token == "" {
		return "", fmt.Errorf("empty token")
	}
	var b strings.Builder
	b.Grow(len(token))
	for i := 0; i < len(token); i++ {
		switch c := token[i]; {
		case isPlain(c):
			b.WriteByte(c)
		case c == '/':
			b.WriteByte('.')
		case c == '=' && i+2 < len(token):
			hi, lo := strings.IndexByte(hexDigits, token[i+1]), strings.IndexByte(hexDigits, token[i+2])
			if hi < 0 || lo < 0 {
				return "", fmt.Errorf("token %q: bad escape", token)
			}
			decoded := byte(hi<<4 | lo) //nolint:gosec // both are 0..15
			if isPlain(decoded) || decoded == '.' {
				return "", fmt.Errorf("token %q: needless escape", token)
			}
			b.WriteByte(decoded)
			i += 2
		default:
			return "", fmt.Errorf("token %q: byte %q is not allowed", token, c)
		}
	}
	return b.String(), nil
}

// Token encodes s for use as one token of a subject or a KV key.
func Token(s string) string { return encode(s) }

// ParseToken is the inverse of Token.
func ParseToken(token string) (string, error) { return decode(token) }
