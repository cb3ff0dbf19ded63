package guides_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// A burst and a quota are one decision. What the first denies is not charged to the second.
func Example_severalLimits() {
	ctx := context.Background()
	st := memstore.New() // or redisstore.New(client), for several instances
	defer st.Close()
	api, err := tokenbucket.New(st, "api", tokenbucket.Limits{
		tokenbucket.PerHour(2).Named("hour"),
		tokenbucket.PerDay(1_000).Named("day"),
	})
	if err != nil {
		panic(err)
	}
	for range 3 {
		d, err := api.Allow(ctx, "acme")
		if err != nil {
			panic(err)
		}
		fmt.Println(d.Allowed, remaining(d))
	}
	// Output:
	// true hour 1, day 999
	// true hour 0, day 998
	// false hour 0, day 998
}

// A user, the user's team and everybody together are one decision.
func Example_severalKeys() {
	ctx := context.Background()
	st := memstore.New()
	defer st.Close()
	teams, err := tokenbucket.New(st, "team", tokenbucket.PerHour(3))
	if err != nil {
		panic(err)
	}
	users, err := tokenbucket.New(st, "user", tokenbucket.PerHour(2), tokenbucket.Within(teams))
	if err != nil {
		panic(err)
	}
	ask := func(team, user string) {
		d, err := tokenbucket.All(ctx, users.Ask(team+"/"+user, 1), teams.Ask(team, 1))
		if err != nil {
			panic(err)
		}
		fmt.Println(user, d.Allowed, remaining(d))
	}
	for range 3 {
		ask("acme", "ann")
	}
	ask("acme", "ben")
	ask("acme", "ben")
	// Output:
	// ann true user 1, team 2
	// ann true user 0, team 1
	// ann false user 0, team 1
	// ben true user 1, team 0
	// ben false user 1, team 0
}

// askModel asks a language model within the limits of a team, of which one counts requests and one tokens.
func askModel(ctx context.Context, limiter *tokenbucket.Limiter, team, prompt string, model func(string) (string, int64, error)) (string, error) {
	estimate := tokenbucket.Cost{"requests": 1, "tokens": int64(len(prompt))/4 + 500}
	r, err := limiter.Reserve(ctx, team, estimate)
	if err != nil {
		return "", err
	}
	if !r.Allowed {
		return "", fmt.Errorf("try again in %v", r.RetryAfter)
	}
	defer func() { _ = r.Settle(ctx) }() // without Use, the estimate stays charged
	text, used, err := model(prompt)
	if err != nil {
		return "", err
	}
	_ = r.Use("tokens", used) // again, as a stream grows
	return text, nil
}

func Example_estimate() {
	ctx := context.Background()
	st := memstore.New()
	defer st.Close()
	limiter, err := tokenbucket.New(st, "llm", tokenbucket.Limits{
		tokenbucket.PerHour(60).Named("requests"),
		tokenbucket.PerDay(2_000).Named("tokens"),
	})
	if err != nil {
		panic(err)
	}
	model := func(prompt string) (string, int64, error) {
		d, err := limiter.Peek(ctx, "search")
		fmt.Println("while it answers:", remaining(d))
		return "an answer", 120, err
	}
	if _, err := askModel(ctx, limiter, "search", "a question of sixty letters, which are about fifteen tokens.", model); err != nil {
		panic(err)
	}
	d, err := limiter.Peek(ctx, "search")
	fmt.Println("afterwards:", remaining(d), err)
	// Output:
	// while it answers: requests 59, tokens 1485
	// afterwards: requests 59, tokens 1880 <nil>
}

type teamKey struct{}

func Example_estimateOfARequest() {
	st := memstore.New()
	defer st.Close()
	limiter, err := tokenbucket.New(st, "llm", tokenbucket.Limits{
		tokenbucket.PerHour(60).Named("requests"),
		tokenbucket.PerDay(2_000).Named("tokens"),
	})
	if err != nil {
		panic(err)
	}
	limit := ratelimit.New(limiter, nethttp.ByContext(teamKey{}), ratelimit.Costs(func(r *http.Request) tokenbucket.Cost {
		return tokenbucket.Cost{"requests": 1, "tokens": max(r.ContentLength, 0)/4 + 500}
	}))
	h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if reservation, ok := tokenbucket.FromContext(r.Context()); ok { // none while the store is down, with policy.FailOpen
			_ = reservation.Use("tokens", 120)
		}
	}))
	for range 2 {
		r, w := httptest.NewRequest(http.MethodPost, "/chat", strings.NewReader("a question")), httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), teamKey{}, "search")))
		fmt.Println(w.Code)
	}
	d, err := limiter.Peek(context.Background(), "search")
	fmt.Println(remaining(d), err)
	// Output:
	// 200
	// 200
	// requests 58, tokens 1760 <nil>
}
