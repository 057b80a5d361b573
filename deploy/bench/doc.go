// Package bench measures a whole installation, beside upstream where there is
// something to compare with. Every measurement is a test with a floor: it prints
// what it saw and fails when that is not enough. Short forms run with all tests;
// LONG=1 runs what docs/benchmarks.md quotes. Machines are shared and noisy, so
// floors are ratios within one run wherever they can be.
package bench
