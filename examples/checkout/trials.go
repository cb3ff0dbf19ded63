package main

import (
	"context"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

// twinWait is long enough for any payment.
const twinWait = 10 * time.Second

// addTrials adds payments with outcomes that customers seldom see, for the buttons of the page. A
// real shop has none of these routes.
func addTrials(api *gin.RouterGroup, shop *shop, orders *guard.Guard, st store.Store, lease time.Duration) error {
	customer := ginmw.ScopeBy(ginmw.ByContext("user"))

	// A repeat waits for the first request, and gets its answer.
	api.POST("/checkout/wait", idempotency.New(orders, customer, policy.Required(), policy.Wait(twinWait)), shop.checkout)

	// The provider neither recognises repeats nor can be asked: a payment of unknown outcome is not
	// run again, until an operator has resolved it.
	once, err := guard.New(st, "checkout-once", guard.WithTTL(lease))
	if err != nil {
		return err
	}
	api.POST("/checkout/once", idempotency.New(once, customer, policy.Required()), shop.checkout)

	// The store is down, and the guard fails closed.
	down, err := guard.New(downStore{st}, "checkout-down")
	if err != nil {
		return err
	}
	api.POST("/checkout/down", idempotency.New(down, customer, policy.Required()), shop.checkout)
	return nil
}

// downStore answers as a store does whose server is down.
type downStore struct{ store.Store }

func (downStore) BeginOperation(context.Context, store.BeginRequest) (store.BeginReply, error) {
	return store.BeginReply{}, store.ErrUnavailable
}
