package guides_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cloudwego/hertz/pkg/app/server"
	"github.com/cloudwego/hertz/pkg/common/adaptor"
	"github.com/cloudwego/hertz/pkg/common/config"
	"github.com/cloudwego/hertz/pkg/network/standard"
	"github.com/go-chi/chi/v5"
	kratos "github.com/go-kratos/kratos/v2/transport/http"
	"github.com/gorilla/mux"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

func onChi(limiter *tokenbucket.Limiter, carts *lock.Locker) http.Handler {
	r := chi.NewRouter()
	r.Use(ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct())))
	r.With(exclusive.New(carts, nethttp.ByPathValue("id"))).Put("/carts/{id}", fill)
	return r
}

func onGorilla(limiter *tokenbucket.Limiter, carts *lock.Locker) http.Handler {
	r := mux.NewRouter()
	r.Use(ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct())))
	r.Handle("/carts/{id}", exclusive.New(carts, byCart)(http.HandlerFunc(fill))).Methods(http.MethodPut)
	return r
}

// byCart is for gorilla/mux, which sets no PathValue.
func byCart(r *http.Request) (string, error) { return mux.Vars(r)["id"], nil }

func onKratos(limiter *tokenbucket.Limiter, carts *lock.Locker) *kratos.Server {
	s := kratos.NewServer(kratos.Filter(ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct()))))
	s.Route("/").PUT("/carts/{id}", func(c kratos.Context) error {
		fill(c.Response(), c.Request())
		return nil
	}, exclusive.New(carts, byCart)) // Kratos routes with gorilla/mux
	return s
}

func onHertz(limiter *tokenbucket.Limiter, carts *lock.Locker, opts ...config.Option) *server.Hertz {
	m := http.NewServeMux()
	m.Handle("PUT /carts/{id}", exclusive.New(carts, nethttp.ByPathValue("id"))(http.HandlerFunc(fill)))
	h := server.New(opts...)
	h.Any("/carts/*path", adaptor.HertzHandler(ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct()))(m)))
	return h
}

func fill(w http.ResponseWriter, r *http.Request) {
	_, held := lock.FromContext(r.Context())
	_, _ = fmt.Fprint(w, "filled, with the lock: ", held)
}

// Each of them refuses a cart that is in use, and what is over the limit.
func TestRouters(t *testing.T) {
	for name, serve := range map[string]func(t *testing.T, limiter *tokenbucket.Limiter, carts *lock.Locker) (url string){
		"chi":         served(onChi),
		"gorilla/mux": served(onGorilla),
		"fiber":       servedByFiber,
		"Kratos":      served(func(l *tokenbucket.Limiter, carts *lock.Locker) http.Handler { return onKratos(l, carts) }),
		"Hertz": func(t *testing.T, limiter *tokenbucket.Limiter, carts *lock.Locker) string {
			listener := must(net.Listen("tcp", "127.0.0.1:0"))
			h := onHertz(limiter, carts, server.WithTransport(standard.NewTransporter), server.WithListener(listener))
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = h.Run()
			}()
			t.Cleanup(func() {
				_ = h.Shutdown(t.Context())
				_ = listener.Close()
				<-done
			})
			return "http://" + listener.Addr().String()
		},
	} {
		t.Run(name, func(t *testing.T) {
			st := memstore.New()
			defer st.Close()
			carts := must(lock.New(st, "carts"))
			defer carts.Close() //nolint:errcheck // it holds nothing
			url := serve(t, must(tokenbucket.New(st, "api", tokenbucket.PerHour(2))), carts)
			client := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
			defer client.CloseIdleConnections()
			send := func(want int) {
				t.Helper()
				r := must(http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/carts/42", nil))
				resp := must(client.Do(r))
				defer resp.Body.Close() //nolint:errcheck // the status is all
				if resp.StatusCode != want {
					t.Errorf("%s, want %d", resp.Status, want)
				}
				var text string
				if _, _ = fmt.Fscan(resp.Body, &text); (text == "filled,") != (want == http.StatusOK) {
					t.Errorf("the body begins with %q", text)
				}
			}
			lease := must(carts.Lock(t.Context(), "42"))
			send(http.StatusConflict)
			if err := lease.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			send(http.StatusOK)
			send(http.StatusTooManyRequests)
		})
	}
}

func served(
	shop func(*tokenbucket.Limiter, *lock.Locker) http.Handler,
) func(t *testing.T, limiter *tokenbucket.Limiter, carts *lock.Locker) string {
	return func(t *testing.T, limiter *tokenbucket.Limiter, carts *lock.Locker) string {
		s := httptest.NewServer(shop(limiter, carts))
		t.Cleanup(s.Close)
		return s.URL
	}
}
