package rules_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

func Example() {
	ctx := context.Background()
	st := memstore.New()
	defer st.Close()
	api, err := tokenbucket.New(st, "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	version, err := rules.Push(ctx, st, "shop", []byte("limits: { api: { limit: 60/1m } }"), 0, "ann", "the first one")
	if err != nil {
		panic(err)
	}
	r, err := rules.Open(ctx, rules.Store(st, "shop"), rules.For(api), rules.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		panic(err)
	}
	defer func() { _ = r.Close() }()
	fmt.Println(api.Rule().Plan, r.Applied().State)

	if _, err := rules.Push(ctx, st, "shop", []byte("mode: off"), version, "ann", "incident 7"); err != nil {
		panic(err)
	}
	if err := r.Reload(ctx); err != nil { // to wait for it: it is read at once
		panic(err)
	}
	fmt.Println(api.Enforcement().Mode)
	// Output:
	// 60/1m current
	// off
}

func ExampleCheck() {
	err := rules.Check([]byte("mode: on\nlimits:\n  api: { limit: 100/1x }\n  signup: {}\n"), "limits.api")
	fmt.Println(err)
	// Output:
	// rules: the document has 3 errors
	// 1:7: mode: it is "on"; want one of enforce, shadow or off
	// 3:17: limits.api.limit: "100/1x": bad period "1x"
	// 4:3: limits.signup: no mechanism has this name
}
