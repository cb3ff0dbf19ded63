package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/idempotency"
)

func post(e *echo.Echo, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/checkout", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	return w
}

// authenticate stands in for real authentication.
func authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c *echo.Context) error {
		c.Set("user", "alice")
		return next(c)
	}
}

// A checkout that charges once, however often the button is pressed.
func Example_checkout() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	charges := 0
	e := echo.New()
	e.Use(authenticate)
	e.POST("/checkout", func(c *echo.Context) error {
		charges++
		return c.String(http.StatusCreated, fmt.Sprint("order ", charges))
	}, idempotency.New(orders, echov5mw.ScopeBy(echov5mw.ByContext("user")), policy.Required()))

	for range 2 {
		w := post(e, "8e03978e-40d5-43dd-bc93-6894a57f9324", "tea")
		fmt.Println(w.Code, w.Body, "replayed:", w.Header().Get("Idempotency-Replayed") == "true")
	}
	// Output:
	// 201 order 1 replayed: false
	// 201 order 1 replayed: true
}

// An error that the handler returns is an answer too: the answer of the HTTPErrorHandler is kept,
// and the card is not charged again.
func Example_errorOfTheHandler() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	tries := 0
	e := echo.New()
	e.Use(authenticate)
	e.POST("/checkout", func(*echo.Context) error {
		tries++
		return echo.NewHTTPError(http.StatusPaymentRequired, "the card was declined")
	}, idempotency.New(orders, echov5mw.ScopeBy(echov5mw.ByContext("user"))))

	for range 2 {
		w := post(e, "k", "tea")
		fmt.Print(w.Code, " ", w.Body)
	}
	fmt.Println("tries:", tries)
	// Output:
	// 402 {"message":"the card was declined"}
	// 402 {"message":"the card was declined"}
	// tries: 1
}

// An import validates before it writes, and is clean until then: if it dies before the write,
// another request may run it.
func Example_markTheEffect() {
	imports, err := guard.New(memstore.New(), "imports")
	if err != nil {
		panic(err)
	}
	e := echo.New()
	e.Use(authenticate)
	e.POST("/checkout", func(c *echo.Context) error {
		ctx := c.Request().Context()
		attempt, _ := guard.FromContext(ctx)
		if err := attempt.MarkClean(ctx); err != nil { // nothing has happened yet
			_ = attempt.Abandon(ctx)
			return err
		}
		// ... read, check ...
		if err := attempt.MarkDirty(ctx); err != nil { // do not write unless this is recorded
			_ = attempt.Abandon(ctx)
			return err
		}
		return c.String(http.StatusCreated, fmt.Sprint("written in attempt ", attempt.Number()))
	}, idempotency.New(imports, echov5mw.ScopeBy(echov5mw.ByContext("user"))))
	fmt.Println(post(e, "k", "a,b,c").Body)
	// Output: written in attempt 1
}
