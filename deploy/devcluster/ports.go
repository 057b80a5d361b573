package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The range new ports come from. It lies below the ranges from which Linux
// (32768) and macOS (49152) serve port 0 and outgoing connections, so that no
// stranger is handed the port of a cluster that is down for a moment.
const (
	firstPort = 20000
	lastPort  = 31999
)

// listen binds a port for one server. want wins; else the port remembered in
// dir under name; else a free one, which is then remembered. Bound at once and
// handed over open, so that there is no moment at which somebody else can take it.
func listen(dir, name, address string, want int) (net.Listener, error) {
	file := filepath.Join(dir, name+".port")
	if want == 0 {
		remembered, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("reading the port of %s: %w", name, err)
		}
		want, _ = strconv.Atoi(strings.TrimSpace(string(remembered))) // unreadable counts as absent
	}
	l, err := bind(address, want)
	if err != nil {
		return nil, fmt.Errorf("listening for %s: %w", name, err)
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(portOf(l))), 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("remembering the port of %s: %w", name, err)
	}
	return l, nil
}

// bind takes the given port, or for 0 any free one of the range.
func bind(address string, port int) (net.Listener, error) {
	if port != 0 {
		return net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	}
	var last error
	for range 100 {
		try := firstPort + rand.IntN(lastPort-firstPort+1)
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(try)))
		if err == nil {
			return l, nil
		}
		last = err
	}
	return nil, last
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
