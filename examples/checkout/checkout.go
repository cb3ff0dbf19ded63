package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

// prices are in cents.
var prices = map[string]int64{
	"tea":      450,
	"coffee":   620,
	"giftcard": 2500, // its code is shown once
	"declined": 450,  // the provider declines it
	"broken":   450,  // the provider fails at it
	"crash":    450,  // the shop dies after the charge
}

const maxQuantity = 100

type shop struct {
	provider *provider
	orders   notebook
	shelf    shelf
	unpaid   unpaidOrders
}

// request is what a customer sends.
type request struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}

// order is what a customer is answered.
type order struct {
	ID          string `json:"order_id"`
	ChargeID    string `json:"charge_id,omitempty"` // none before the payment
	SKU         string `json:"sku"`
	Quantity    int64  `json:"quantity"`
	AmountCents int64  `json:"amount_cents"`
}

// checkout charges the customer and places the order. It may assume that it runs once for each
// purchase; the idempotency middleware ensures that.
func (s *shop) checkout(c *gin.Context) {
	req, price, ok := readOrder(c)
	if !ok {
		return
	}

	// The request's context is the attempt's: it does not end when the customer closes the
	// browser, but it does when the attempt is lost to another instance.
	ctx := c.Request.Context()
	attempt, ok := guard.FromContext(ctx)
	if !ok { // never without the middleware
		unavailable(c)
		return
	}
	c.Header("X-Attempt", strconv.Itoa(attempt.Number()))
	operation := attempt.OperationID() // the same in every attempt, and unique to this operation
	charged, err := s.provider.charge(ctx, operation, charge{
		Customer: c.GetString("user"), SKU: req.SKU, Quantity: req.Quantity, AmountCents: price * req.Quantity,
	})
	if err != nil {
		chargeFailed(c, attempt, err)
		return
	}
	if req.SKU == "crash" && attempt.Number() == 1 {
		// This is what remains when a process is killed here, without the wait for its lease to
		// end. The answer is a load balancer's.
		_ = attempt.CompleteUnknown(ctx)
		problem(c, http.StatusBadGateway, "The shop died in the middle of the payment.")
		return
	}

	keeps := attempt
	if req.SKU == "giftcard" {
		keeps = nil
	}
	header, body, err := s.place(ctx, operation, charged, keeps)
	if err != nil {
		unknown(c, attempt)
		return
	}
	if keeps == nil { // readers of the store must not find the code there
		_ = attempt.CompleteNotRetained(ctx, http.StatusCreated)
	}
	maps.Copy(c.Writer.Header(), header)
	c.Data(http.StatusCreated, header.Get("Content-Type"), body)
}

// order shows an order to its owner. Everybody else gets 404.
func (s *shop) order(c *gin.Context) {
	ctx, id := c.Request.Context(), c.Param("id")
	text, found, err := s.orders.read(ctx, orderName(c.GetString("user"), id))
	var o placed
	if err == nil && !found {
		if o, found, err = s.unpaid.book.find(ctx, owner(c), id); err == nil && o.Status == unpaid {
			o.Left, err = s.unpaid.left(ctx, id)
		}
	}
	switch {
	case err != nil:
		unavailable(c)
	case !found:
		problem(c, http.StatusNotFound, "You have no such order.")
	case text == "":
		c.JSON(http.StatusOK, o)
	default:
		c.Data(http.StatusOK, "application/json; charset=utf-8", []byte(text))
	}
}

// chargeFailed ends an attempt whose charge has returned an error.
func chargeFailed(c *gin.Context, attempt *guard.Attempt, err error) {
	switch {
	case errors.Is(err, errDeclined): // a final answer: repeats get the same one
		problem(c, http.StatusPaymentRequired, "The payment was declined. Nothing was charged.")
	case errors.Is(err, errProviderFailed): // before it charged anything: a repeat tries again
		_ = attempt.Abandon(c.Request.Context())
		problem(c, http.StatusBadGateway, "The payment provider failed. Try again with the same key.")
	default:
		unknown(c, attempt)
	}
}

// place stores the order of a charge, and returns the answer to its customer, which has the status
// 201. The order comes from the operation and its charge, so that a second attempt places no second
// one. The attempt is nil if the order is placed after it, by reconcile, or if its answer is
// not kept.
func (s *shop) place(ctx context.Context, operation string, c charge, attempt *guard.Attempt) (header http.Header, body []byte, err error) {
	o := order{ID: "ord_" + operation, ChargeID: c.ID, SKU: c.SKU, Quantity: c.Quantity, AmountCents: c.AmountCents}
	if body, err = json.Marshal(o); err != nil {
		return nil, nil, err
	}
	name, text := orderName(c.Customer, o.ID), string(body)
	header = http.Header{"Content-Type": {"application/json; charset=utf-8"}, "Location": {"/api/orders/" + o.ID}}
	if db, ok := s.orders.(completer); ok && attempt != nil {
		header.Set("X-Attempt", strconv.Itoa(attempt.Number()))
		return header, body, db.complete(ctx, name, text, attempt, idempotency.Answer(http.StatusCreated, header, body))
	}
	_, _, err = s.orders.write(ctx, name, text)
	return header, body, err
}

// A completer is a notebook in the database of the guard's records.
type completer interface {
	// complete writes as a notebook does, and completes the attempt with its answer, in one
	// transaction. The middleware, which completes the attempt otherwise, then finds that it has
	// been.
	complete(ctx context.Context, name, text string, attempt *guard.Attempt, answer guard.Result) error
}

// orderName includes the owner, so that another user's order does not exist under the caller's
// name. The quotes keep different pairs apart, and bytes out that a database may refuse in a text.
func orderName(user, id string) string { return fmt.Sprintf("order:%q:%q", user, id) }

// readOrder reads an order and its article's price, or answers what is wrong with it.
func readOrder(c *gin.Context) (req request, price int64, ok bool) {
	req, err := readRequest(c.Request.Body)
	if err != nil {
		problem(c, http.StatusBadRequest, `The body must be {"sku": "tea", "quantity": 1}, and the quantity 1 to 100.`)
		return req, 0, false
	}
	if price, ok = prices[req.SKU]; !ok {
		problem(c, http.StatusNotFound, "There is no such article.")
	}
	return req, price, ok
}

func readRequest(body io.Reader) (request, error) {
	var req request
	if err := readJSON(body, &req); err != nil {
		return req, err
	}
	if req.Quantity < 1 || req.Quantity > maxQuantity {
		return req, errors.New("quantity out of range")
	}
	return req, nil
}

// readJSON reads one JSON object that has no members that into lacks.
func readJSON(body io.Reader, into any) error {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return errors.New("more than one JSON value")
	}
	return nil
}

// problem ends a request with a problem body (RFC 9457), as the middleware does.
func problem(c *gin.Context, status int, detail string) {
	body, _ := json.Marshal(map[string]any{"title": http.StatusText(status), "status": status, "detail": detail})
	c.Abort()
	c.Data(status, "application/problem+json", append(body, '\n'))
}

// unknown ends an attempt that may have charged the customer. What a repeat does is up to the
// guard: see newHandler.
func unknown(c *gin.Context, attempt *guard.Attempt) {
	_ = attempt.CompleteUnknown(c.Request.Context())
	unavailable(c)
}

// unavailable is the answer if the shop's own database cannot be reached, or the attempt is lost.
func unavailable(c *gin.Context) {
	c.Header("Retry-After", "1")
	problem(c, http.StatusServiceUnavailable, "The outcome is not known yet. Try again with the same key.")
}
