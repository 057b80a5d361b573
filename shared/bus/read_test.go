package bus

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
)

func deliveredAs(consumer uint64) *nats.Msg {
	return &nats.Msg{Sub: &nats.Subscription{}, Reply: fmt.Sprintf("$JS.ACK.S.c.1.%d.%d.0.0", 1000+consumer, consumer)}
}

func statusWord(code string, pairs ...string) *nats.Msg {
	h := nats.Header{"Status": {code}}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return &nats.Msg{Header: h}
}

// ⚠ Whoever reads on over a hole misses a deletion for ever.
func TestAReadingTakesNothingButTheNextMessage(t *testing.T) {
	tests := map[string]struct {
		words []*nats.Msg
		want  error
		came  int
	}{
		"one, two, three":                       {[]*nats.Msg{deliveredAs(1), deliveredAs(2), deliveredAs(3)}, nil, 3},
		"the first is missing":                  {[]*nats.Msg{deliveredAs(2)}, ErrGap, 0},
		"one is missing":                        {[]*nats.Msg{deliveredAs(1), deliveredAs(3)}, ErrGap, 1},
		"one comes twice":                       {[]*nats.Msg{deliveredAs(1), deliveredAs(1)}, ErrGap, 1},
		"the consumer was made anew":            {[]*nats.Msg{deliveredAs(1), deliveredAs(2), deliveredAs(1)}, ErrGap, 2},
		"a heartbeat names the last one":        {[]*nats.Msg{deliveredAs(1), statusWord("100", "Nats-Last-Consumer", "1")}, nil, 1},
		"a heartbeat names one that never came": {[]*nats.Msg{deliveredAs(1), statusWord("100", "Nats-Last-Consumer", "2")}, ErrGap, 1},
		"a heartbeat names nothing":             {[]*nats.Msg{statusWord("100")}, ErrGap, 0},
		"a pull has ended":                      {[]*nats.Msg{statusWord("408", "Nats-Pending-Messages", "0")}, nil, 0},
		"the consumer was deleted":              {[]*nats.Msg{statusWord("409", "Description", "Consumer Deleted")}, errGone, 0},
		"nobody is there":                       {[]*nats.Msg{statusWord("503")}, errGone, 0},
		"a word nobody knows":                   {[]*nats.Msg{statusWord("418")}, ErrGap, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := puller{due: pullMessages} // so that it does not ask for more
			came := 0
			var err error
			for _, msg := range tt.words {
				if err = p.take(msg, func(delivery) error { came++; return nil }); err != nil {
					break
				}
			}
			if !errors.Is(err, tt.want) || came != tt.came {
				t.Errorf("%d came, then %v; want %d, then %v", came, err, tt.came, tt.want)
			}
		})
	}
}
