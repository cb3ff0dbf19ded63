package clientip

import (
	"net/netip"
	"strings"
	"testing"
)

// checkCut checks that a cut address is that of the library, in its only spelling.
func checkCut(t *testing.T, s string) {
	t.Helper()
	got, ok := cutIPv4(s)
	want, err := netip.ParseAddrPort(s)
	if is4 := err == nil && want.Addr().Is4(); ok && (!is4 || want.Addr().String() != got) {
		t.Errorf("cutIPv4(%q) = %q, want %v, %v", s, got, want, err)
	} else if is4 && !ok && !strings.HasPrefix(s, "[") {
		t.Errorf("cutIPv4(%q) is none, want %v", s, want)
	}
}

func TestCutIPv4(t *testing.T) {
	for _, s := range []string{
		"203.0.113.7:1234", "0.0.0.0:0", "255.255.255.255:65535", "1.2.3.4:", "1.2.3.4", "1.2.3.4:65536", "1.2.3.4:00001", "1.2.3.4:+1",
		"256.1.1.1:1", "01.2.3.4:1", "1.2.3:1", "1.2.3.4.5:1", "1..3.4:1", ".1.2.3:1", "1.2.3.:1", "1.2.3.4:1:1", "[1.2.3.4]:1",
		"::1:80", "[::1]:80", "1.2.3.4:99999999999999999999", "", ":", ":1", "1.2.3.4 :1", " 1.2.3.4:1", "00.0.0.0:1", "0.0.0.00:1", "1.2.3.4:1 ",
	} {
		checkCut(t, s)
	}
}

func FuzzCutIPv4(f *testing.F) {
	f.Add("203.0.113.7:1234")
	f.Add("1.02.3.4:1")
	f.Fuzz(checkCut)
}
