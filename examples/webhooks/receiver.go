package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// remembered is how long an event's ID is known: providers repeat an event for up to three days.
	remembered = 72 * time.Hour
	// mayTake bounds the handling of an event, and half of it the wait for a twin.
	mayTake  = 10 * time.Second
	maxEvent = 64 << 10 // bytes
	maxSkew  = 5 * time.Minute
)

// receiver handles the events of a provider, each once.
//
// It uses guard.Once in the handler and not the idempotency middleware, since the provider needs no
// answer but whether to repeat the event. Middleware would keep and repeat a 500, and refuse an event
// of unknown outcome until the provider gives up. Here the next delivery of a failed event runs, and
// what deliveries cannot change is kept for a person.
type receiver struct {
	secret   []byte
	events   *guard.Guard
	payments *payments
	queue    *queue
	dead     deadLetters
}

func newReceiver(st store.Records, secret []byte, p *payments, q *queue) (*receiver, error) {
	events, err := guard.New(st, "payment-events", guard.WithRetention(remembered))
	if err != nil {
		return nil, err
	}
	return &receiver{secret: secret, events: events, payments: p, queue: q}, nil
}

// ServeHTTP answers 200 to an event that needs no other delivery, 503 to one that does, and 401 to one
// that is not of the provider.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxEvent))
	if err != nil {
		http.Error(w, "the event is too large, or broke off", http.StatusBadRequest)
		return
	}
	// Before anything else: a forger fills no guard and no dead letters.
	if err := verify(r.secret, req.Header, body, time.Now()); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	e := event{ID: req.Header.Get(idHeader)}
	if err := json.Unmarshal(body, &e); err != nil {
		r.dead.keep(message{ID: e.ID, Text: string(body)}, err)
		return // 200: no repeat can be read either
	}

	// A provider that hangs up does not stop the work in the middle.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), mayTake)
	defer cancel()
	// No fingerprint: the ID says which event it is, and its body may have the time of the delivery. A
	// delivery that arrives while its twin is handled waits for it, and need not be repeated.
	err = guard.Once(ctx, r.events, guard.Operation{Key: e.ID, Wait: mayTake / 2}, func(ctx context.Context) error {
		return r.handle(ctx, e)
	})
	switch action, after := guard.Disposition(err); action {
	case guard.Acknowledge:
	case guard.RetryLater:
		if after > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
		}
		http.Error(w, "send it again later", http.StatusServiceUnavailable)
	case guard.DeadLetter:
		r.dead.keep(message{ID: e.ID, Text: string(body)}, err) // and 200: a repeat has the same outcome
	}
}

// handle updates the payment, and has a mail sent. Its effects are steps: after a failure, the next
// delivery continues after the recorded ones.
func (r *receiver) handle(ctx context.Context, e event) error {
	attempt, ok := guard.FromContext(ctx)
	if !ok {
		return errors.New("not called by guard.Once")
	}
	news, err := guard.Step(ctx, attempt, "payment", func(ctx context.Context) (bool, error) {
		return r.payments.update(ctx, e)
	})
	if err != nil || !news {
		return err
	}
	// A step may run twice if its process dies, so the message has the same ID each time. The consumer
	// compares it.
	_, err = guard.Step(ctx, attempt, "mail", func(context.Context) (bool, error) {
		r.queue.send(message{ID: attempt.DownstreamKey("queue", "mail"), Text: textOf(e.Payment, e.Status)})
		return true, nil
	})
	return err
}

func textOf(payment, status string) string { return fmt.Sprintf("payment %s is %s", payment, status) }

// The header fields of an event, as standardwebhooks.com has them.
const (
	idHeader        = "Webhook-Id"
	timeHeader      = "Webhook-Timestamp"
	signatureHeader = "Webhook-Signature"
)

var errSignature = errors.New("no valid signature")

// verify checks the signature of an event, and that it was made now: one that an attacker has
// recorded is refused before its ID is forgotten.
func verify(secret []byte, h http.Header, body []byte, now time.Time) error {
	made, err := strconv.ParseInt(h.Get(timeHeader), 10, 64)
	if err != nil || now.Sub(time.Unix(made, 0)).Abs() > maxSkew {
		return errSignature
	}
	want := []byte(sign(secret, h, body))
	for _, signature := range strings.Fields(h.Get(signatureHeader)) { // several, while the secret is replaced
		if hmac.Equal([]byte(signature), want) { // in constant time
			return nil
		}
	}
	return errSignature
}

// sign returns the signature of an event with this header and body.
func sign(secret []byte, h http.Header, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", h.Get(idHeader), h.Get(timeHeader), body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
