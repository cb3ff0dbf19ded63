package guides_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// newProvider returns a client of a provider that takes 100 calls of each merchant in any minute.
func newProvider(st store.Buckets) (*http.Client, error) {
	limiter, err := tokenbucket.New(st, "psp", tokenbucket.Strict(100, time.Minute).Burst(20))
	if err != nil {
		return nil, err
	}
	byMerchant := nethttp.Join(ratelimit.ByHost(), nethttp.ByContext(merchantKey{}))
	limited := ratelimit.Transport(nil, limiter, byMerchant)
	return &http.Client{Transport: idempotency.Transport(limited)}, nil // repeats what may be repeated, each time with a token
}

type merchantKey struct{}

// The provider refuses one merchant for a minute. Its calls are not sent until then, and those of others
// are.
func Example_outgoingCalls() {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/acme" {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer provider.Close()
	st := memstore.New() // or redisstore.New(client), for several instances
	defer st.Close()
	client, err := newProvider(st)
	if err != nil {
		panic(err)
	}
	defer client.CloseIdleConnections()

	call := func(merchant string) {
		ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), merchantKey{}, merchant), 10*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.URL+"/"+merchant, nil)
		if err != nil {
			panic(err)
		}
		resp, err := client.Do(r)
		if errors.Is(err, ratelimit.ErrNotSent) && errors.Is(err, context.DeadlineExceeded) {
			fmt.Println(merchant, "has to wait for longer than 10 s: not sent")
			return
		} else if err != nil {
			panic(err)
		}
		_ = resp.Body.Close()
		fmt.Println(merchant, resp.StatusCode)
	}
	call("acme")
	call("acme")
	call("zenith")
	// Output:
	// acme 429
	// acme has to wait for longer than 10 s: not sent
	// zenith 200
}

// sdk is the client of a provider that limits itself by what golang.org/x/time/rate has.
type sdk struct {
	limit interface{ Wait(context.Context) error }
}

func (s *sdk) charge(ctx context.Context, cents int) error {
	if err := s.limit.Wait(ctx); err != nil {
		return err
	}
	fmt.Println("charge", cents)
	return nil
}

// Two processes share the calls that a provider takes.
func Example_sharedWait() {
	st := memstore.New() // or redisstore.New(client)
	defer st.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 2 { // processes
		limiter, err := tokenbucket.New(st, "psp", tokenbucket.PerHour(10).Burst(3))
		if err != nil {
			panic(err)
		}
		provider := &sdk{limit: limiter.Key("psp")}
		for _, cents := range []int{450, 120} {
			if err := provider.charge(ctx, cents); err != nil {
				fmt.Println(err)
			}
		}
	}
	// Output:
	// charge 450
	// charge 120
	// charge 450
	// tokenbucket: the tokens come after the deadline: context deadline exceeded
}
