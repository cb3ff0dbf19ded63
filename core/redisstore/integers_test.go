package redisstore

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// A server with 32 bits would write large integers wrongly as what they are.
func TestHowScriptsWriteIntegers(t *testing.T) {
	testpace.Parallel(t)
	client := redistest.Start(t).Client()
	const short = "local string = {format = function() return '-2147483648' end}\n"
	for before, want := range map[string]string{"": "%d", short: "%.0f"} {
		if got, err := client.Eval(t.Context(), before+scriptText("lib/integers")+"return INT", nil).Text(); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	for _, n := range []string{"0", "1", "-1", "2147483648", "1795291454496218", "9007199254740991", "2305843009213693952"} {
		if got, err := client.Eval(t.Context(), scriptText("lib/integers")+"return string.format(INT, ARGV[1])", nil, n).Text(); err != nil || got != n {
			t.Errorf("%q, %v; want %s", got, err, n)
		}
	}
}
