package main

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"time"
)

// paymentTime is how long the provider takes for a charge.
const paymentTime = 200 * time.Millisecond

var (
	// errDeclined means that the provider will never charge this.
	errDeclined = errors.New("payment declined")
	// errProviderFailed means that the provider failed before it charged anything.
	errProviderFailed = errors.New("payment provider failed")
)

// provider pretends to be a company that charges customers. As real ones do, it is given a key with
// each charge, and charges once for each key.
type provider struct {
	ledger  notebook     // the company's, not the shop's
	charges atomic.Int64 // made by this instance
}

// charge charges a customer, unless it has done so under this key. Either way it returns the
// charge's id. After any other error it is unknown whether the customer was charged.
func (p *provider) charge(ctx context.Context, key, sku string, _ int64) (id string, err error) {
	// The request travels for half of the time, and the answer for the other half: an instance that
	// dies in between has charged a customer without a record of it.
	if err := travel(ctx); err != nil {
		return "", err
	}
	switch sku {
	case "declined":
		return "", errors.Join(travel(ctx), errDeclined)
	case "broken":
		return "", errors.Join(travel(ctx), errProviderFailed)
	}
	id, first, err := p.ledger.write(ctx, "charge:"+key, "ch_"+rand.Text())
	if err != nil {
		return "", err
	}
	if first {
		p.charges.Add(1)
	}
	return id, travel(ctx)
}

func travel(ctx context.Context) error {
	select {
	case <-time.After(paymentTime / 2):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
