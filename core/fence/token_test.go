package fence_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/fence"
)

func TestTokenText(t *testing.T) {
	for _, c := range []struct {
		token fence.Token
		text  string
	}{
		{fence.Token{Number: 1}, "1"},
		{fence.Token{Number: 34, Shared: true}, "34;shared"},
		{fence.Token{Number: math.MaxInt64}, "9223372036854775807"},
		{fence.Token{Number: math.MaxInt64, Shared: true}, "9223372036854775807;shared"},
	} {
		if got := c.token.String(); got != c.text {
			t.Errorf("%+v is written as %q, want %q", c.token, got, c.text)
		}
		if got, err := fence.ParseToken(c.text); got != c.token || err != nil {
			t.Errorf("%q is read as %+v, %v; want %+v", c.text, got, err, c.token)
		}
	}
}

// A token has one spelling, so every other one is refused.
func TestInvalidTokenText(t *testing.T) {
	for _, text := range []string{
		"", " ", "0", "00", "01", "-0", "-1", "+1", " 1", "1 ", "1\n", "1\x00", "1_000", "1,000", "1.0", "1e3", "0x1", "１", "x",
		"1, 2", "1;", "1;share", "1;Shared", "1; shared", "1 ;shared", "1;shared ", "1;shared;shared", "1;shared=?1", ";shared", "0;shared", "-1;shared",
		"9223372036854775808", "18446744073709551617", "9223372036854775808;shared", strings.Repeat("1", 1000),
	} {
		got, err := fence.ParseToken(text)
		if !errors.Is(err, fence.ErrInvalid) || errors.Is(err, fence.ErrStale) || got != (fence.Token{}) {
			t.Errorf("%q is read as %+v, %v", text, got, err)
			continue
		}
		if len(text) > 5 && strings.Contains(err.Error(), text) {
			t.Errorf("the error has the client's text: %v", err)
		}
	}
}

func TestTokenRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		token := fence.Token{Number: rapid.Int64Range(1, math.MaxInt64).Draw(t, "number"), Shared: rapid.Bool().Draw(t, "shared")}
		if got, err := fence.ParseToken(token.String()); got != token || err != nil {
			t.Fatalf("%+v is written as %q, and read as %+v, %v", token, token, got, err)
		}
	})
}

func FuzzParseToken(f *testing.F) {
	for _, text := range []string{"", "0", "1", "01", "+1", "33;shared", ";shared", "1;shared;shared", "9223372036854775807", "9223372036854775808"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		token, err := fence.ParseToken(text)
		if err != nil {
			if !errors.Is(err, fence.ErrInvalid) || token != (fence.Token{}) {
				t.Errorf("%q: %+v, %v", text, token, err)
			}
			return
		}
		if got := token.String(); got != text {
			t.Errorf("%q and %q are both %+v", text, got, token)
		}
		if _, err := fence.Mark(0).Admit(token); err != nil {
			t.Errorf("%q is a token that no resource admits: %v", text, err)
		}
	})
}

func TestTokenInContext(t *testing.T) {
	if got, ok := fence.FromContext(t.Context()); ok {
		t.Errorf("found %+v where there is none", got)
	}
	ctx := fence.NewContext(t.Context(), fence.Token{Number: 33})
	inner, cancel := context.WithCancel(fence.NewContext(ctx, fence.Token{Number: 34, Shared: true}))
	defer cancel()
	for want, ctx := range map[fence.Token]context.Context{{Number: 33}: ctx, {Number: 34, Shared: true}: inner} {
		if got, ok := fence.FromContext(ctx); got != want || !ok {
			t.Errorf("found %+v, %v; want %+v", got, ok, want)
		}
	}
}
