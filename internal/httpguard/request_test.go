package httpguard

import (
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A client that asks again after an update is not refused with a mismatch.
func TestTheFingerprintOfARequestStays(t *testing.T) {
	with := httptest.NewRequest("POST", "/pay%20now?a=1&b=", strings.NewReader(`{"amount":450}`))
	with.Header.Set("Content-Type", "application/json")
	without := httptest.NewRequest("DELETE", "/order/1", nil)
	unsized := httptest.NewRequest("POST", "/pay", struct{ *strings.Reader }{strings.NewReader(strings.Repeat("long ", 1000))})
	unsized.ContentLength = -1
	wants := []string{
		"d8db8aafeaab3d1791cbcab3319fee99768288ed0f948b81174d6acd1fdc87c4",
		"bf2509f5661f60259da92fa860a1bf9902d62419e653454d16ae9dcde4a449a9",
		"51b6c3b186423370c0a821e4b20bb0ec27aa23e9d7a51125209814229c56f159",
	}
	for i, r := range []*http.Request{with, without, unsized} {
		_, got, err := readRequest(r, 1<<20)
		if err != nil || hex.EncodeToString(got) != wants[i] {
			t.Errorf("%s %s: %x, %v, want %s", r.Method, r.URL, got, err, wants[i])
		}
	}
}
