package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestProblemTypes(t *testing.T) {
	for _, base := range []string{"https://shop.example/problems/", "https://shop.example/problems#", "http://[::1]:8080/?problem="} {
		ProblemTypes(base)
		d := Denial{Reason: KeyMissing, TypeBase: base}
		if got := d.Type(); got != base+"key-missing" {
			t.Errorf("the type is %s", got)
		}
		body, err := json.Marshal(d)
		if err != nil || !strings.Contains(string(body), `"type":"`+base+`key-missing"`) {
			t.Errorf("%s, %v", body, err)
		}
		if got, want := (Denial{Reason: QuotaExceeded, TypeBase: base}).Type(), (Denial{Reason: QuotaExceeded}).Type(); got != want {
			t.Errorf("the registered type is %s, want %s", got, want)
		}
	}
	for _, base := range []string{
		"", "problems/", "/problems/", "//shop.example/", "https:", "https:///problems/", "mailto:a@b.example/", "shop.example/problems/",
		"https://shop.example/problems", "https://shop.example/1", "https://shop.example/ß/", "https://shop.example/>;rel=x/",
		"https://shop.example/a b/", "https://shop.example/\"/", "https://shop.example/\n/", "https://shop.example/%zz/", ":",
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "policy: ProblemTypes: ") {
					t.Errorf("%q: panicked with %q", base, got)
				}
			}()
			ProblemTypes(base)
		}()
	}
}
