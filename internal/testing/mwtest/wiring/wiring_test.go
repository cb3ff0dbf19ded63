package wiring

import (
	"slices"
	"testing"
)

func TestJudge(t *testing.T) {
	right := line{code: "a(b)"}
	wrong := line{code: "a(c)", mistake: "c"}
	reports := func(number, message string) string { return "/tmp/wiring.go:" + number + ":7: " + message + "\n" }
	for name, c := range map[string]struct {
		out  string
		want []string
	}{
		"the mistake alone is found":   {out: "# command-line-arguments\n" + reports("11", "cannot use c (value of type C) as B")},
		"with notes of the compiler":   {out: reports("11", "cannot use c (value of type C) as B:\n\thave C\n\twant B")},
		"the mistake compiles":         {want: []string{"compiles: a(c)"}},
		"another mistake on its line":  {out: reports("11", "undefined: a"), want: []string{"fails for another reason than c: a(c)\n\t7: undefined: a"}},
		"valid code fails too":         {out: reports("10", "undefined: b") + reports("11", "cannot use c (C)"), want: []string{"does not compile: a(b)\n\t7: undefined: b"}},
		"another line fails":           {out: reports("3", "\"time\" imported and not used") + reports("11", "cannot use c (C)"), want: []string{"does not compile: 3:7: \"time\" imported and not used"}},
		"the build fails":              {out: "no such module\n" + reports("11", "cannot use c (C)"), want: []string{"the compiler reports no such module"}},
		"a longer expression is wrong": {out: reports("11", "cannot use ca (C)"), want: []string{"fails for another reason than c: a(c)\n\t7: cannot use ca (C)"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := judge([]line{right, wrong}, 10, c.out); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
