package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
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
	// errWithdrawn means that the shop has withdrawn this charge.
	errWithdrawn = errors.New("payment withdrawn")
)

// provider pretends to be a company that charges customers. As real ones do, it is given a key with
// each charge, and charges once for each key.
type provider struct {
	ledger  notebook     // the company's, not the shop's
	charges atomic.Int64 // made by this instance
}

// charge is an entry in the provider's ledger. It has what the shop has said of it, so that the shop
// can find that again.
type charge struct {
	ID          string `json:"id"`
	Customer    string `json:"customer"`
	SKU         string `json:"sku"`
	Quantity    int64  `json:"quantity"`
	AmountCents int64  `json:"amount_cents"`
	Withdrawn   bool   `json:"withdrawn,omitempty"` // before it was made
}

// charge charges a customer, unless it has done so under this key. Either way it returns the charge
// with its id. After any other error it is unknown whether the customer was charged.
func (p *provider) charge(ctx context.Context, key string, c charge) (charge, error) {
	// The request travels for half of the time, and the answer for the other half: an instance that
	// dies in between has charged a customer without a record of it.
	if err := travel(ctx); err != nil {
		return charge{}, err
	}
	switch c.SKU {
	case "declined":
		return charge{}, errors.Join(travel(ctx), errDeclined)
	case "broken":
		return charge{}, errors.Join(travel(ctx), errProviderFailed)
	}
	c.ID = "ch_" + rand.Text()
	text, err := json.Marshal(c)
	if err != nil {
		return charge{}, err
	}
	noted, first, err := p.ledger.write(ctx, "charge:"+key, string(text))
	if err != nil {
		return charge{}, err
	}
	if first {
		p.charges.Add(1)
	}
	if err := json.Unmarshal([]byte(noted), &c); err != nil {
		return charge{}, err
	}
	if c.Withdrawn {
		return charge{}, errors.Join(travel(ctx), errWithdrawn)
	}
	return c, travel(ctx)
}

// withdraw ends a charge: one that was made under the key is given back, and none is made from now
// on. It may be repeated.
func (p *provider) withdraw(ctx context.Context, key string) error {
	noted, _, err := p.ledger.write(ctx, "charge:"+key, `{"withdrawn":true}`)
	if err != nil {
		return err
	}
	var c charge
	if err := json.Unmarshal([]byte(noted), &c); err != nil || c.Withdrawn {
		return err
	}
	_, _, err = p.ledger.write(ctx, "refund:"+key, noted)
	return err
}

// find returns the charge that was made under a key.
func (p *provider) find(ctx context.Context, key string) (c charge, found bool, err error) {
	text, found, err := p.ledger.read(ctx, "charge:"+key)
	if found {
		err = json.Unmarshal([]byte(text), &c)
	}
	return c, found, err
}

func travel(ctx context.Context) error {
	select {
	case <-time.After(paymentTime / 2):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
