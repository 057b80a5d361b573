package event

import (
	"strings"
	"testing"
)

// Subjects are on the wire: releases that run side by side must agree.
func TestSubjectIsFrozen(t *testing.T) {
	root := Root("prod-1")
	if root != "k8s.prod-1" {
		t.Errorf("Root() = %q", root)
	}
	for want, got := range map[string]string{
		"k8s.prod-1.pods.3.7.kube-system.coredns-5d78":                            Subject(root, "pods", Key{"kube-system", "coredns-5d78"}, 3, 7),
		"k8s.prod-1.nodes.0.11._.ip-10-0-0-1/ec2/internal":                        Subject(root, "nodes", Key{Name: "ip-10-0-0-1.ec2.internal"}, 0, 11),
		"k8s.prod-1.clusterroles/rbac/authorization/k8s/io.255.0._.system=3Anode": Subject(root, "clusterroles.rbac.authorization.k8s.io", Key{Name: "system:node"}, 255, 0),
		"k8s.prod-1.pods.1.2.=5F.=7E":                                             Subject(root, "pods", Key{"_", "~"}, 1, 2),
		"k8s.prod-1.pods.1.2.ns.=41=C3=A4=20=00=2A=3E=3D=2F":                      Subject(root, "pods", Key{"ns", "Aä \x00*>=/"}, 1, 2),
		"k8s.prod-1.pods.5.5._.~":                                                 BookmarkSubject(root, "pods", 5),
		"k8s.prod-1.pods.5.>":                                                     KeyFilter(root, "pods", 5),
		"k8s.prod-1.pods.*.5.>":                                                   NamespaceFilter(root, "pods", 5),
		"k8s.prod-1.endpointslices/discovery/k8s/io.>":                            KindFilter(root, "endpointslices.discovery.k8s.io"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestParseSubjectRefuses(t *testing.T) {
	for _, s := range []string{
		"", "k8s.c", "k8s.c.pods.1.2.ns", "k8s.c.pods.1.2.ns.a.b", "k8s.d.pods.1.2.ns.a", "k8s.cc.pods.1.2.ns.a",
		"k8s.c.pods.x.2.ns.a", "k8s.c.pods.-1.2.ns.a", "k8s.c.pods.+1.2.ns.a", "k8s.c.pods.01.2.ns.a", "k8s.c.pods.1..ns.a",
		"k8s.c.pods.1.2.ns.=6a", "k8s.c.pods.1.2.ns.=61", "k8s.c.pods.1.2.ns.=2E", "k8s.c.pods.1.2.ns.=4", "k8s.c.pods.1.2.ns.A",
		"k8s.c.pods.1.2.ns._", "k8s.c.pods.1.2.~.a", "k8s.c.pods.1.2._.~", "k8s.c.pods.1.1.ns.~", "k8s.c..1.2.ns.a", "k8s.c.pods.1.2..a",
		"k8s.c.pods.1.2.=.a", // no namespace is "_", and nothing else
	} {
		if p, err := ParseSubject("k8s.c", s); err == nil {
			t.Errorf("ParseSubject(%q) = %+v, want an error", s, p)
		}
	}
}

func TestParseSubjectReadsABookmark(t *testing.T) {
	got, err := ParseSubject("k8s.c", BookmarkSubject("k8s.c", "pods", 9))
	if want := (Place{Kind: "pods", PK: 9, PN: 9, Bookmark: true}); err != nil || got != want {
		t.Errorf("ParseSubject() = %+v, %v, want %+v", got, err, want)
	}
}

// From an object to its subject and back, whatever the names are.
func FuzzSubjectOfObject(f *testing.F) {
	f.Add("pods", "kube-system", "coredns", uint8(3), uint8(7))
	f.Add("a.b.c", "", "system:node:x.y", uint8(0), uint8(255))
	f.Add("", "_", "~", uint8(1), uint8(1))
	f.Add("k", "=", "\x00\xff* >.", uint8(1), uint8(1))
	f.Fuzz(func(t *testing.T, kind, namespace, name string, pk, pn uint8) {
		want := Place{Kind: Kind(kind), Key: Key{namespace, name}, PK: int(pk), PN: int(pn)}
		s := Subject("k8s.c", want.Kind, want.Key, want.PK, want.PN)
		if strings.ContainsAny(s, " *>\t\r\n\x00") || strings.Count(s, ".") != 6 {
			t.Errorf("%q is no subject for one object", s)
		}
		got, err := ParseSubject("k8s.c", s)
		if err != nil || got != want {
			t.Errorf("ParseSubject(%q) = %+v, %v, want %+v", s, got, err, want)
		}
	})
}

// From a subject to its object and back: no two subjects mean one object.
func FuzzSubjectOfBytes(f *testing.F) {
	f.Add("k8s.c.pods.1.2.ns.a/b=3A")
	f.Add("k8s.c.pods.1.1._.~")
	f.Add("k8s.c.=.0.0.=.=")
	f.Add("k8s.c.=.0.0._.=")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParseSubject("k8s.c", s)
		if err != nil {
			return
		}
		again := Subject("k8s.c", p.Kind, p.Key, p.PK, p.PN)
		if p.Bookmark {
			again = BookmarkSubject("k8s.c", p.Kind, p.PK)
		}
		if again != s {
			t.Errorf("%q parses to %+v, whose subject is %q", s, p, again)
		}
	})
}

func FuzzToken(f *testing.F) {
	f.Add("n1.example.org")
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := ParseToken(Token(s)); err != nil || got != s {
			t.Errorf("ParseToken(Token(%q)) = %q, %v", s, got, err)
		}
	})
}

func BenchmarkSubject(b *testing.B) {
	key := Key{"kube-system", "coredns-5d78c9869d-abcde"}
	b.ReportAllocs()
	for b.Loop() {
		Subject("k8s.default", "pods", key, 17, 3)
	}
}

func BenchmarkParseSubject(b *testing.B) {
	s := Subject("k8s.default", "endpointslices.discovery.k8s.io", Key{"kube-system", "coredns-5d78c9869d-abcde"}, 17, 3)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseSubject("k8s.default", s); err != nil {
			b.Fatal(err)
		}
	}
}
