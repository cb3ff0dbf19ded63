package echomw_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echomw/ratelimit"
)

var errPassword = errors.New("wrong password")

// An error without a status is left to middleware outside while echo's own error handler is in place: its
// status is not known, and charged. An error handler of the application's is called.
func TestChargeStatusBehindAnErrorHandler(t *testing.T) {
	for name, wire := range map[string]func(*echo.Echo){
		"middleware": func(e *echo.Echo) {
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error {
					if err := next(c); errors.Is(err, errPassword) {
						return c.NoContent(http.StatusUnauthorized)
					} else if err != nil {
						return err
					}
					return nil
				}
			})
		},
		"an error handler": func(e *echo.Echo) {
			own := e.HTTPErrorHandler
			e.HTTPErrorHandler = func(err error, c echo.Context) {
				if errors.Is(err, errPassword) {
					_ = c.NoContent(http.StatusUnauthorized)
					return
				}
				own(err, c)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			st := memstore.New()
			defer func() { _ = st.Close() }()
			limiter, err := tokenbucket.New(st, "logins", tokenbucket.PerHour(5))
			if err != nil {
				t.Fatal(err)
			}
			e := echo.New()
			wire(e)
			e.POST("/login", func(echo.Context) error { return errPassword },
				ratelimit.New(limiter, echomw.Global(), policy.ChargeStatus(http.StatusUnauthorized)))
			answers := map[int]int{}
			for range 50 {
				w := httptest.NewRecorder()
				e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/login", http.NoBody))
				answers[w.Code]++
			}
			if answers[http.StatusUnauthorized] != 5 || answers[http.StatusTooManyRequests] != 45 {
				t.Errorf("%v", answers)
			}
		})
	}
}
