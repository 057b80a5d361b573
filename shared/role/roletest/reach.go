package roletest

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/millrace-io/millrace/shared/rates"
)

// Replace puts something in the place of an unexported field of another room: a
// clock that reads a system call, which testing/synctest cannot replace.
func Replace(of any, field string, with any) {
	v := reflect.ValueOf(of).Elem().FieldByName(field)
	reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem().Set(reflect.ValueOf(with))
}

// Field returns an unexported field of another room.
func Field(of any, name string) any {
	v := reflect.ValueOf(of).Elem().FieldByName(name)
	return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem().Interface()
}

// Endless is a token that is good for ever, which the room that makes tokens does
// not give away.
func Endless() rates.Token {
	var t rates.Token
	Replace(&t, "b", rates.New(rates.Config{Role: "test"}, nil, nil, nil, nil).Bucket("scope", 1, 1))
	Replace(&t, "until", time.Duration(1<<62))
	return t
}

// Void is a token that it is too late to use.
func Void() rates.Token {
	t := Endless()
	Replace(&t, "until", time.Duration(0))
	return t
}

// Expire makes a token void that somebody has taken.
func Expire(t rates.Token) {
	Replace(Field(Field(&t, "b"), "r"), "boot", func() time.Duration { return 1<<63 - 1 })
}

// Sleep waits, unless ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Eventually waits for what happens beside the test.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(2 * time.Millisecond); !f(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute still not: %s", what)
		}
	}
}
