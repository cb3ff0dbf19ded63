package guides_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

type user struct{ Name string }

// session stands for the application's own sessions.
func session(r *http.Request) (user, error) {
	if cookie, err := r.Cookie("session"); err == nil && cookie.Value == "ada's" {
		return user{"ada"}, nil
	}
	return user{}, errors.New("no session")
}

// docs/console.md.
func TestConsole(t *testing.T) {
	store, mux := memstore.New(), http.NewServeMux()
	defer store.Close()
	c := console.New(store,
		console.Service("checkout"),
		console.Authorize(func(r *http.Request) (console.Operator, error) {
			user, err := session(r) // yours
			if err != nil {
				return console.Operator{}, err
			}
			return console.Operator{Name: user.Name, May: console.Act}, nil // or console.View
		}),
	)
	defer c.Close()
	mux.Handle("/lockkeeper/", http.StripPrefix("/lockkeeper", c))

	for cookie, want := range map[string]int{"": http.StatusForbidden, "session=ada's": http.StatusOK} {
		req := httptest.NewRequest(http.MethodGet, "/lockkeeper/processes", nil)
		req.Header.Set("Cookie", cookie)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, req)
		if w.Code != want {
			t.Errorf("%q: %d, want %d", cookie, w.Code, want)
		}
	}
}
