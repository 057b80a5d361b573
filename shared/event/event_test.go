package event

import (
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestKindAndKey(t *testing.T) {
	k := Kind("endpointslices.discovery.k8s.io")
	if k.Resource() != "endpointslices" || k.Group() != "discovery.k8s.io" || Kind("pods").Group() != "" {
		t.Errorf("resource %q, group %q", k.Resource(), k.Group())
	}
	for s, key := range map[string]Key{"ns/a": {"ns", "a"}, "n1.x": {"", "n1.x"}} {
		if ParseKey(s) != key || key.String() != s {
			t.Errorf("ParseKey(%q) = %+v, String() = %q", s, ParseKey(s), key.String())
		}
	}
	ordered := []Key{{"", "b"}, {"a", "b"}, {"a", "c"}, {"b", "a"}}
	for i := range ordered {
		for j := range ordered {
			if got := ordered[i].Compare(ordered[j]); got != compareInts(i, j) {
				t.Errorf("%v compared with %v is %d", ordered[i], ordered[j], got)
			}
		}
	}
}

func compareInts(i, j int) int {
	switch {
	case i < j:
		return -1
	case i > j:
		return 1
	default:
		return 0
	}
}

func TestOps(t *testing.T) {
	for op, want := range map[Op]struct {
		word string
		live bool
	}{Put: {"put", true}, Delete: {"delete", false}, Opaque: {"opaque", true}, Bookmark: {"bookmark", false}, 0: {"unknown", false}} {
		if op.String() != want.word || op.Live() != want.live {
			t.Errorf("op %d is %q, live %t", op, op, op.Live())
		}
	}
}

// Sums and hashes are on the wire: these numbers never change.
func TestSumsAreFrozen(t *testing.T) {
	var s Sums
	s.Add("pods", Key{"kube-system", "coredns"}, "7b0e2c1a-3f1d-4c55-9d0e-3a1f5b6c7d8e", 12345)
	one := s
	s.Add("nodes", Key{Name: "n1.example.org"}, "u", 1<<63)
	golden := []Sums{
		{1, 0x278d264e459c5922, 0xbed1bb3567382417},
		{2, 0x32ab79c73792857a, 0xa5deff5729d30e7e},
	}
	if one != golden[0] || s != golden[1] {
		t.Errorf("sums are %#v and %#v, want %#v", one, s, golden)
	}
	for body, want := range map[string]uint64{"": 0xefd01f60ba992926, "body": 0x984788467eed8596} {
		if got := HashBody([]byte(body)); got != want {
			t.Errorf("HashBody(%q) = %#x, want %#x", body, got, want)
		}
	}
}

// A zero byte ends each part, so that moving a letter from one part to the next
// makes another identity. FNV-1a of a zero byte is one multiplication.
func TestExistenceIsFNVWithZeroBytes(t *testing.T) {
	h := fnv.New64a()
	_, _ = h.Write([]byte("pods\x00ns\x00name\x00uid\x00"))
	if got, want := existenceOf("pods", Key{"ns", "name"}, "uid"), mix(h.Sum64()); got != want {
		t.Errorf("existenceOf() = %#x, want %#x", got, want)
	}
	seen := map[uint64]string{}
	for name, e := range map[string]uint64{
		"pods ns name uid": existenceOf("pods", Key{"ns", "name"}, "uid"),
		"podsn s name uid": existenceOf("podsn", Key{"s", "name"}, "uid"),
		"pods nsn ame uid": existenceOf("pods", Key{"nsn", "ame"}, "uid"),
		"pods ns nameu id": existenceOf("pods", Key{"ns", "nameu"}, "id"),
		"pods - nsname id": existenceOf("pods", Key{"", "nsname"}, "uid"),
		"pods nsname - id": existenceOf("pods", Key{"nsname", ""}, "uid"),
	} {
		if other, twice := seen[e]; twice {
			t.Errorf("%q and %q have one identity", name, other)
		}
		seen[e] = name
	}
}

type object struct {
	kind    Kind
	key     Key
	uid     string
	version uint64
}

func objects(t *rapid.T) []object {
	word := rapid.StringMatching(`[a-z0-9.-]{0,6}`)
	return rapid.SliceOf(rapid.Custom(func(t *rapid.T) object {
		return object{
			Kind(word.Draw(t, "kind")), Key{word.Draw(t, "namespace"), word.Draw(t, "name")},
			word.Draw(t, "uid"), rapid.Uint64().Draw(t, "version"),
		}
	})).Draw(t, "objects")
}

func TestSumsDoNotDependOnTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := objects(t)
		var a, b Sums
		for _, o := range list {
			a.Add(o.kind, o.key, o.uid, o.version)
		}
		for _, i := range rand.Perm(len(list)) {
			o := list[i]
			b.Add(o.kind, o.key, o.uid, o.version)
		}
		if !a.SameVersions(b) || !a.SameObjects(b) {
			t.Errorf("%+v and %+v of the same objects", a, b)
		}
	})
}

func TestRemoveIsTheInverseOfAdd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := objects(t)
		kept := rapid.IntRange(0, len(list)).Draw(t, "kept")
		var want, got Sums
		for i, o := range list {
			got.Add(o.kind, o.key, o.uid, o.version)
			if i < kept {
				want.Add(o.kind, o.key, o.uid, o.version)
			}
		}
		for _, o := range list[kept:] {
			got.Remove(o.kind, o.key, o.uid, o.version)
		}
		if got != want {
			t.Errorf("sums are %+v, want %+v", got, want)
		}
	})
}

// One object swapped for another, or one in another version, must show.
func TestSumsTellSetsApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := objects(t)
		if len(list) == 0 {
			return
		}
		var a Sums
		for _, o := range list {
			a.Add(o.kind, o.key, o.uid, o.version)
		}
		o := list[rapid.IntRange(0, len(list)-1).Draw(t, "which")]
		b := a
		b.Remove(o.kind, o.key, o.uid, o.version)
		b.Add(o.kind, o.key, o.uid, o.version+1)
		if !a.SameObjects(b) || a.SameVersions(b) {
			t.Errorf("another version: %+v and %+v", a, b)
		}
		b = a
		b.Remove(o.kind, o.key, o.uid, o.version)
		b.Add(o.kind, o.key, o.uid+"x", o.version)
		if a.SameObjects(b) || a.SameVersions(b) {
			t.Errorf("another object: %+v and %+v", a, b)
		}
	})
}

func TestHashBodyIsNeverZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if HashBody(rapid.SliceOf(rapid.Byte()).Draw(t, "body")) == 0 {
			t.Error("the hash is zero, which means no body")
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	key, uid := Key{"kube-system", "coredns-5d78c9869d-abcde"}, "7b0e2c1a-3f1d-4c55-9d0e-3a1f5b6c7d8e"
	var s Sums
	b.ReportAllocs()
	for b.Loop() {
		s.Add("pods", key, uid, 12345)
	}
}

func BenchmarkHashBody(b *testing.B) {
	body := make([]byte, 3000)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		HashBody(body)
	}
}

func TestAKeyIsLoggedAsPeopleWriteIt(t *testing.T) {
	var out strings.Builder
	slog.New(slog.NewJSONHandler(&out, nil)).Info("pod is evicted", "pod", Key{Namespace: "shop", Name: "web-0"}, "node", Key{Name: "node-1"})
	if line := out.String(); !strings.Contains(line, `"pod":"shop/web-0","node":"node-1"`) {
		t.Error(line)
	}
}
