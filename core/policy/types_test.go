package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestProblemTypes(t *testing.T) {
	for _, base := range []string{
		"https://shop.example/problems/", "https://shop.example/problems#", "http://[::1]:8080/?problem=", "/problems/", "/problems#", "/",
	} {
		ProblemTypes(base)
		d := Denial{Reason: KeyMissing, TypeBase: base}
		if d.Type() != base+"key-missing" || d.Page() != d.Type() {
			t.Errorf("the type is %s, and the page %s", d.Type(), d.Page())
		}
		body, err := json.Marshal(d)
		if err != nil || !strings.Contains(string(body), `"type":"`+base+`key-missing"`) {
			t.Errorf("%s, %v", body, err)
		}
		for _, reason := range []Reason{QuotaExceeded, AbnormalUsage, ReducedCapacity} {
			d, without := Denial{Reason: reason, TypeBase: base}, Denial{Reason: reason}
			if d.Type() != without.Type() || d.Page() != base+string(reason) || without.Page() != without.Type() {
				t.Errorf("the standard type is %s, and the page %s; without a base %s and %s", d.Type(), d.Page(), without.Type(), without.Page())
			}
		}
	}
	for _, base := range []string{
		"", "problems/", "//shop.example/", "https:", "https:///problems/", "mailto:a@b.example/", "shop.example/problems/", "ftp://shop.example/",
		"javascript://shop.example/", "https://shop.example/problems", "https://shop.example/1", "/problems", "https://shop.example:",
		"https://shop.example/ß/", "https://shop.example/>;rel=x/", "https://shop.example/a b/", "https://shop.example/\"/", "/a\\b/", `/\shop.example/`,
		"https://shop.example/\n/", "https://shop.example/%zz/", ":", "https://shop:secret@shop.example/",
		"https://shop:secret@shop.example/%zz/", "https://shop:secret",
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "policy: ProblemTypes: ") || strings.Contains(got, "secret") {
					t.Errorf("%q: panicked with %q", base, got)
				}
			}()
			ProblemTypes(base)
		}()
	}
}
