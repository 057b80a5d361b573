package clock

import (
	"testing"
	"time"
)

func TestBootRunsAsFastAsTheMonotonicClock(t *testing.T) {
	boot, now := Boot(), time.Now()
	timer := time.NewTimer(20 * time.Millisecond)
	<-timer.C
	// Read in this order, what Boot says lies within what time says twice.
	atLeast := time.Since(now)
	passed := Boot() - boot
	if atMost := time.Since(now); passed < atLeast-time.Millisecond || passed > atMost+time.Millisecond {
		t.Errorf("%s have passed, want %s to %s", passed, atLeast, atMost)
	}
}

func BenchmarkBoot(b *testing.B) {
	for b.Loop() {
		Boot()
	}
}
