package main

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

type config struct {
	rate, burst          int64
	lease, wait, timeout time.Duration
	unpaid               time.Duration
	token                string           // of operators, empty for none
	console              *console.Console // theirs, nil for none
	reconcile            bool
	proxies              []netip.Prefix // in front, none for clients that connect to this program
	rules                string         // a file, empty for none
}

// trust is for flag.Func.
func (c *config) trust(networks string) error {
	for network := range strings.SplitSeq(networks, ",") {
		prefix, err := netip.ParsePrefix(network)
		if err != nil {
			return err
		}
		c.proxies = append(c.proxies, prefix)
	}
	return nil
}

// clients finds the addresses of clients.
func (c *config) clients() clientip.Resolver {
	if c.proxies == nil {
		return clientip.Direct()
	}
	return clientip.TrustedProxies(c.proxies...)
}

// newHandler wires the shop: this is the part to copy. timers does what is due, until the store is
// shut down. Rules are followed until ctx ends.
func newHandler(ctx context.Context, of state, metrics http.Handler, c config) (_ http.Handler, timers func(), err error) {
	st := of.store
	limiter, err := tokenbucket.New(st, "api", tokenbucket.PerSecond(c.rate).Burst(c.burst))
	if err != nil {
		return nil, nil, fmt.Errorf("-rate, -burst: %w", err)
	}
	if c.wait != 0 && (c.wait < time.Millisecond || c.wait > time.Hour) {
		return nil, nil, fmt.Errorf("-wait: %v is neither 0 nor between 1ms and 1h", c.wait)
	}
	shop := &shop{provider: &provider{ledger: of.ledger}, orders: of.orders, shelf: of.shelf}
	// An instance that dies in the middle of a payment leaves one of unknown outcome.
	options := []guard.Option{guard.WithTTL(c.lease)}
	switch {
	case c.reconcile:
		// The next request asks the provider, and continues with its answer.
		options = append(options, guard.WithReconcile(shop.reconcile))
	case c.console == nil:
		// The next request runs the payment again. That is safe here: the provider is given the
		// same key each time (the operation's), and charges once for each key.
		options = append(options, guard.WithRerun())
	default:
		// The payment is refused until an operator has resolved it: for a provider that neither
		// recognises repeats nor can be asked.
	}
	orders, err := guard.New(st, "checkout", options...)
	if err != nil {
		return nil, nil, fmt.Errorf("-lease: %w", err)
	}
	stock, err := lock.New(st, "stock", lock.WithTTL(c.lease))
	if err != nil {
		return nil, nil, err
	}
	placing, err := shop.openUnpaid(of, stock, c)
	if err != nil {
		return nil, nil, err
	}
	places, err := semaphore.New(st, "reports", reportsAtOnce, semaphore.WithTTL(c.lease), semaphore.WithMaxWaiting(reportsWaiting))
	if err != nil {
		return nil, nil, err
	}
	publicPlaces, err := semaphore.New(st, "public-reports", reportsAtOnce, semaphore.WithTTL(c.lease))
	if err != nil {
		return nil, nil, err
	}
	if c.rules != "" {
		followed, err := rules.Open(ctx, rules.File(c.rules), rules.For(limiter, places, publicPlaces))
		if err != nil {
			return nil, nil, fmt.Errorf("-rules: %w", err)
		}
		context.AfterFunc(ctx, func() { _ = followed.Close() }) // which never fails
	}
	counters := &counters{provider: shop.provider, console: c.console != nil}
	reports := newReports(shop.provider)
	user := ginmw.ByContext("user")

	r := gin.New()
	r.Use(traced(), gin.Recovery())
	if err := r.SetTrustedProxies(nil); err != nil { // gin's own ClientIP shall not be fooled either
		return nil, nil, err
	}
	r.NoRoute(func(c *gin.Context) { problem(c, http.StatusNotFound, "There is no page at this address.") })
	if err := servePage(r); err != nil {
		return nil, nil, err
	}
	r.GET("/metrics", gin.WrapH(metrics)) // a real shop does not expose this to customers
	// Probes pass no limit, and ask no store: while that is down, every instance would be taken away
	// at once, and no customer would see why.
	for _, path := range []string{"/healthz", "/readyz"} {
		r.GET(path, func(c *gin.Context) { c.Status(http.StatusNoContent) })
	}
	r.GET("/api/stats", counters.show)
	r.GET("/api/report/places", authenticate, reports.show(places, user))
	r.GET("/api/report/public/places", reports.show(publicPlaces, ginmw.Global()))

	// The order matters. The limit comes first, so that a flood is cheap to refuse. An answer may
	// be replayed only to an authenticated user. Idempotency comes last: a replay does not reach
	// the handler.
	address := ginmw.ByClientIP(c.clients())
	limit := ratelimit.New(limiter, address)
	api := r.Group("/api", counters.count, limit, authenticate)
	api.POST("/checkout", idempotency.New(orders, ginmw.ScopeBy(user), policy.Required(), policy.Wait(c.wait)), shop.checkout)
	api.GET("/orders/:id", shop.order)
	// An order that is placed without a payment, and its payment: both may be run again, so that a
	// repeat finds out what became of an attempt that died.
	again := idempotency.New(placing, ginmw.ScopeBy(user), policy.Required(), policy.Wait(c.wait))
	api.POST("/orders", again, shop.unpaid.place)
	api.POST("/orders/:id/pay", again, shop.unpaid.pay)
	r.GET("/api/orders", authenticate, shop.unpaid.list) // without a limit, as other states that the page shows
	if err := addTrials(api, shop, orders, st, c.lease); err != nil {
		return nil, nil, err
	}

	// The stock of an article is changed by one request at a time, on all instances together, and
	// other requests wait. These routes have no limit by address, since a flash sale is many buyers
	// at once, and in this demonstration all of them come from one browser. Without the lock
	// (?lock=off) the shop sells more than it has.
	oneAtATime := exclusive.New(stock, ginmw.ByParam("sku"), policy.Wait(10*time.Second),
		ginmw.Unless(func(c *gin.Context) bool { return c.Query("lock") == "off" }))
	articles := r.Group("/api/stock/:sku", authenticate, shop.sells)
	articles.GET("", shop.stock)
	articles.POST("", oneAtATime, shop.restock)
	articles.POST("/take", counters.count, oneAtATime, shop.take)
	// An article is not counted while another request changes it. A count does not wait for that.
	articles.POST("/count", counters.count, exclusive.New(stock, ginmw.ByParam("sku")), shop.takeStock)

	// The limit slows down guesses of the token. It fails open, since the console also works, and is
	// needed most, while the store is down.
	if c.console != nil {
		r.Any("/console/*path", ratelimit.New(limiter, address, policy.FailOpen()), operators{c.token}.authenticate,
			gin.WrapH(http.StripPrefix("/console", c.console)))
	}

	// Each customer has a few reports made at a time, on all instances together, and a few more
	// requests wait, for a second at most. Later requests are refused at once instead of waiting in
	// vain, with 429: the customer has sent too many. Everybody shares the places of public
	// reports: that they are taken is no client's fault, and the answer is 503.
	r.GET("/api/report", counters.arrive, authenticate, reports.count,
		concurrency.New(places, user, policy.Wait(reportWait)), reports.report)
	r.GET("/api/report/public", counters.arrive, reports.count,
		concurrency.New(publicPlaces, ginmw.Global(), policy.Overload()), reports.report)
	rush := r.Group("/api/report", limit, authenticate)
	rush.POST("/rush", reports.rush("/api/report"))
	rush.POST("/public/rush", reports.rush("/api/report/public"))
	return r, shop.unpaid.run, nil
}

// openUnpaid adds orders that are placed without a payment, and their timers. It returns the guard
// of requests for them.
func (s *shop) openUnpaid(of state, stock *lock.Locker, c config) (placing *guard.Guard, err error) {
	if err := checkWithin(c.unpaid); err != nil {
		return nil, err
	}
	if placing, err = guard.New(of.store, "placing", guard.WithTTL(c.lease), guard.WithRerun()); err != nil {
		return nil, err
	}
	cancels, err := guard.New(of.store, "cancels", guard.WithTTL(c.lease), guard.WithRerun())
	if err != nil {
		return nil, err
	}
	timers, err := delay.New(of.store, "unpaid", delay.WithLease(c.lease))
	if err != nil {
		return nil, err
	}
	s.unpaid = unpaidOrders{shop: s, book: of.book(timers), stock: stock, timers: timers, cancels: cancels, within: c.unpaid}
	return placing, nil
}

// authenticate stands in for real authentication: it trusts the header X-User.
func authenticate(c *gin.Context) {
	names := c.Request.Header.Values("X-User")
	if len(names) != 1 || names[0] == "" || len(names[0]) > 64 {
		c.Header("WWW-Authenticate", "X-User")
		problem(c, http.StatusUnauthorized, "Say who you are in the header X-User, in 1 to 64 characters.")
		return
	}
	c.Set("user", names[0])
}
