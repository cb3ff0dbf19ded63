package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

const (
	// stockWait is how long an order waits for the lock of its article.
	stockWait = 10 * time.Second
	// cancelsAtOnce is how many orders an instance cancels at a time. Those of an article wait for
	// each other anyway.
	cancelsAtOnce = 4
)

// unpaidOrders are orders that are placed without a payment. Each takes its stock, and has a timer,
// which cancels it and gives the stock back, unless it is paid first.
type unpaidOrders struct {
	shop    *shop
	book    orderBook
	stock   *lock.Locker // as that of the routes that change the stock
	timers  *delay.Queue
	cancels *guard.Guard // by the tasks of the timers
	within  time.Duration
}

// place places an order.
func (u *unpaidOrders) place(c *gin.Context) {
	req, price, ok := readOrder(c)
	if !ok {
		return
	}
	if req.SKU == "giftcard" { // its code is in no answer that is kept
		problem(c, http.StatusUnprocessableEntity, "A gift card is paid at once.")
		return
	}
	ctx := c.Request.Context()
	attempt, ok := guard.FromContext(ctx)
	if !ok { // never without the middleware
		unavailable(c)
		return
	}
	o := placed{
		order: order{
			ID: "ord_" + attempt.OperationID(), SKU: req.SKU, Quantity: req.Quantity, AmountCents: price * req.Quantity,
		},
		Status: unpaid, PlacedAt: time.Now().UnixMilli(), Left: seconds(u.within),
	}
	p, err := u.placing(c, attempt, http.StatusCreated, o)
	if err != nil {
		unknown(c, attempt)
		return
	}
	var s status
	err = u.withStock(ctx, req.SKU, func(ctx context.Context) (err error) {
		s, err = u.book.place(ctx, p)
		return err
	})
	switch {
	case errors.Is(err, errSoldOut):
		problem(c, http.StatusConflict, "Sold out: there is less left than that.")
	case err != nil:
		unknown(c, attempt)
	case s == cancelled:
		problem(c, http.StatusConflict, "The time of this order was over before it was placed. Order again.")
	default:
		p.reply(c)
	}
}

// pay pays an order of the caller's.
func (u *unpaidOrders) pay(c *gin.Context) {
	ctx := c.Request.Context()
	attempt, ok := guard.FromContext(ctx)
	if !ok {
		unavailable(c)
		return
	}
	o, found, err := u.book.find(ctx, owner(c), c.Param("id"))
	switch {
	case err != nil:
		unknown(c, attempt)
		return
	case !found:
		problem(c, http.StatusNotFound, "You have no such order.")
		return
	case o.Status == cancelled:
		problem(c, http.StatusConflict, "This order was cancelled, since it was not paid in time. Nothing was charged.")
		return
	case o.Status == paid && attempt.Number() == 1: // a later attempt finds what an earlier one has paid
		problem(c, http.StatusConflict, "This order is paid already. Nothing was charged again.")
		return
	}
	// The charge's key is the order: a customer who pays it again is charged once.
	charged, err := u.shop.provider.charge(ctx, o.ID, charge{
		Customer: c.GetString("user"), SKU: o.SKU, Quantity: o.Quantity, AmountCents: o.AmountCents,
	})
	switch {
	case errors.Is(err, errWithdrawn):
		problem(c, http.StatusConflict, "This order was cancelled, since it was not paid in time. Nothing was charged.")
		return
	case err != nil:
		chargeFailed(c, attempt, err)
		return
	}
	o.Status, o.ChargeID = paid, charged.ID
	p, err := u.placing(c, attempt, http.StatusOK, o)
	if err != nil {
		unknown(c, attempt)
		return
	}
	switch s, err := u.book.pay(ctx, p); {
	case err != nil:
		unknown(c, attempt)
	case s != paid: // the timer was first, and gives the money back
		problem(c, http.StatusConflict, "The time of this order was over before the payment. It was cancelled, and what was charged is given back.")
	default:
		p.reply(c)
	}
}

// list shows the caller's latest orders that were placed without a payment.
func (u *unpaidOrders) list(c *gin.Context) {
	ctx := c.Request.Context()
	all, err := u.book.list(ctx, owner(c))
	for i := range all {
		if err == nil && all[i].Status == unpaid {
			all[i].Left, err = u.left(ctx, all[i].ID)
		}
	}
	if err != nil {
		c.Header("Retry-After", "1")
		problem(c, http.StatusServiceUnavailable, "Your orders cannot be shown now. Try again.")
		return
	}
	c.Header("Cache-Control", "no-store")
	c.JSON(http.StatusOK, append([]placed{}, all...))
}

// left returns the time that is left for the payment of an order, in seconds.
func (u *unpaidOrders) left(ctx context.Context, id string) (int64, error) {
	timer, err := u.timers.Inspect(ctx, id)
	if errors.Is(err, delay.ErrNoTask) { // the order has changed since
		return 0, nil
	}
	return seconds(timer.Due), err
}

// run cancels orders that were not paid in time, until the store is shut down. It waits for a store
// that does not reply, and for one that is full.
func (u *unpaidOrders) run() {
	for {
		err := u.timers.Run(context.Background(), cancelsAtOnce, u.expire)
		if errors.Is(err, delay.ErrClosed) {
			return
		}
		slog.Error("orders that are not paid are not cancelled now", "error", err)
		<-time.After(time.Second)
	}
}

// expire is the task of a timer.
func (u *unpaidOrders) expire(ctx context.Context, t *delay.Task) error {
	var e expiry
	if err := json.Unmarshal(t.Payload(), &e); err != nil {
		return delay.Bury(err)
	}
	err := guard.Once(ctx, u.cancels, guard.Operation{Key: t.ID()}, func(ctx context.Context) error { return u.cancel(ctx, e) })
	var twin *guard.InFlightError // of a worker that has died: its lease ends
	if errors.As(err, &twin) {
		return delay.Again(twin.Remaining)
	}
	return err
}

// cancel cancels an order unless it is paid. It may run more than once, and at the same time as a
// payment: the order's status decides.
func (u *unpaidOrders) cancel(ctx context.Context, e expiry) error {
	var s status
	err := u.withStock(ctx, e.SKU, func(ctx context.Context) (err error) {
		s, err = u.book.cancel(ctx, e)
		return err
	})
	if err != nil || s == paid {
		return err
	}
	// From now on no charge of the order is made, and one that was made is given back.
	return u.shop.provider.withdraw(ctx, e.ID)
}

// withStock calls fn while no other request changes the stock of an article.
func (u *unpaidOrders) withStock(ctx context.Context, sku string, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, stockWait)
	defer cancel()
	return u.stock.Do(ctx, sku, fn)
}

// placing returns a request for the order book, with the answer of its attempt.
func (u *unpaidOrders) placing(c *gin.Context, attempt *guard.Attempt, code int, o placed) (placing, error) {
	body, err := json.Marshal(o)
	header := http.Header{
		"Content-Type": {"application/json; charset=utf-8"}, "Location": {"/api/orders/" + o.ID},
		"X-Attempt": {strconv.Itoa(attempt.Number())},
	}
	return placing{
		placed: o, owner: owner(c), within: u.within, attempt: attempt,
		answer: idempotency.Answer(code, header, body), code: code, header: header, body: body,
	}, err
}

// reply answers a request as its attempt was completed.
func (p *placing) reply(c *gin.Context) {
	maps.Copy(c.Writer.Header(), p.header)
	c.Data(p.code, p.header.Get("Content-Type"), p.body)
}

// owner is the caller's name, in quotes: they keep bytes out that a database or JSON refuses.
func owner(c *gin.Context) string { return strconv.Quote(c.GetString("user")) }

// seconds rounds a time up, to none at least.
func seconds(d time.Duration) int64 { return int64(max(d+time.Second-1, 0) / time.Second) }

// checkWithin checks the time for a payment: the shop keeps its orders for a little longer.
func checkWithin(d time.Duration) error {
	if d < time.Second || d > 24*time.Hour {
		return fmt.Errorf("-unpaid: %v is not between 1s and 24h", d)
	}
	return nil
}
