package main

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

// admin shows an operator the payments of unknown outcome, and resolves them.
type admin struct {
	token   string
	orders  *guard.Guard
	shop    *shop
	origins http.CrossOriginProtection
}

// sameOrigin refuses requests that the page of another origin has a browser send, but for GET.
func (a *admin) sameOrigin(c *gin.Context) {
	if err := a.origins.Check(c.Request); err != nil {
		problem(c, http.StatusForbidden, "This is for the shop's own page.")
	}
}

// authenticate admits whoever has the token, which was printed at the start. It is in a header, since
// URLs are logged.
func (a *admin) authenticate(c *gin.Context) {
	c.Header("Cache-Control", "no-store")
	token, found := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if !found || subtle.ConstantTimeCompare([]byte(token), []byte(a.token)) != 1 {
		c.Header("WWW-Authenticate", "Bearer")
		problem(c, http.StatusUnauthorized, "This is not the token that the shop has printed.")
	}
}

// unresolved is what an operator sees of a payment.
type unresolved struct {
	ID      string `json:"id"`
	Version string `json:"version"` // of what the operator sees
	Attempt int    `json:"attempt"`
	Holder  string `json:"holder"`
	Age     int    `json:"age_seconds"`
	Charge  string `json:"charge"` // what the provider says; empty if it has none
}

// maxListed is how many payments are shown at a time.
const maxListed = 100

// list shows the payments of unknown outcome.
func (a *admin) list(c *gin.Context) {
	ctx := c.Request.Context()
	payments := []unresolved{}
	for record, err := range a.orders.Unresolved(ctx) {
		if err != nil {
			officeUnavailable(c)
			return
		}
		if record.State != guard.Unknown && !record.Dirty {
			continue // the next request runs it
		}
		charged, _, err := a.shop.provider.find(ctx, record.ID)
		if err != nil {
			officeUnavailable(c)
			return
		}
		payments = append(payments, unresolved{
			ID: record.ID, Version: record.Version(), Attempt: record.Attempt, Holder: record.Holder,
			Age: int(record.Age.Seconds()), Charge: charged.ID,
		})
		if len(payments) == maxListed {
			break
		}
	}
	slices.SortFunc(payments, func(a, b unresolved) int { return cmp.Or(cmp.Compare(a.Age, b.Age), cmp.Compare(a.ID, b.ID)) })
	c.JSON(http.StatusOK, payments)
}

// resolve settles a payment as the operator says, if it still is what the operator has seen.
func (a *admin) resolve(c *gin.Context) {
	var req struct {
		Version, Outcome, Why string
	}
	if err := readJSON(http.MaxBytesReader(c.Writer, c.Request.Body, 1<<10), &req); err != nil {
		problem(c, http.StatusBadRequest, "The body must have a version, an outcome, and why.")
		return
	}
	if strings.TrimSpace(req.Why) == "" {
		problem(c, http.StatusBadRequest, "Say how you know: it is kept in the log.")
		return
	}
	ctx := c.Request.Context()
	record, err := a.orders.InspectID(ctx, c.Param("id"))
	switch {
	case errors.Is(err, guard.ErrNoRecord), errors.Is(err, guard.ErrInvalidOperation):
		problem(c, http.StatusNotFound, "There is no such payment.")
		return
	case err != nil:
		officeUnavailable(c)
		return
	case record.Version() != req.Version:
		changed(c)
		return
	}
	var how guard.Resolution
	switch req.Outcome {
	case "charged":
		answer, found, err := a.shop.answer(ctx, record.ID)
		if err != nil {
			officeUnavailable(c)
			return
		}
		if !found {
			problem(c, http.StatusUnprocessableEntity, "The provider has no such charge, so there is no order to place.")
			return
		}
		how = guard.Happened(answer)
	case "answer lost":
		how = guard.HappenedAnswerLost(http.StatusCreated)
	case "never charged":
		how = guard.NeverHappened()
	default:
		problem(c, http.StatusBadRequest, `The outcome must be "charged", "answer lost" or "never charged".`)
		return
	}
	// Between the two, the payment may have changed again: Resolve compares, too.
	switch err := a.orders.Resolve(ctx, record, how, "the operator", req.Why); {
	case err == nil:
		c.Status(http.StatusNoContent)
	case errors.Is(err, guard.ErrChanged), errors.Is(err, guard.ErrOutcomeKnown), errors.Is(err, guard.ErrInFlight):
		changed(c)
	default:
		officeUnavailable(c)
	}
}

func changed(c *gin.Context) {
	problem(c, http.StatusConflict, "It has changed since you looked, and was left as it is.")
}

func officeUnavailable(c *gin.Context) {
	c.Header("Retry-After", "1")
	problem(c, http.StatusServiceUnavailable, "The shop cannot say that now. Try again.")
}

// reconcile finds out what became of a payment, for guard.WithReconcile.
func (s *shop) reconcile(ctx context.Context, r guard.Record) (guard.Resolution, error) {
	answer, found, err := s.answer(ctx, r.ID)
	switch {
	case err != nil:
		return guard.Resolution{}, err
	case !found: // a charge that arrives even later has the key of the next attempt: one of them counts
		return guard.NeverHappened(), nil
	}
	return guard.Happened(answer), nil
}

// answer places the order of an operation that was charged, and returns the answer to its customer. It
// reports false if the provider has no such charge.
func (s *shop) answer(ctx context.Context, operation string) (answer guard.Result, found bool, err error) {
	charged, found, err := s.provider.find(ctx, operation)
	if !found || err != nil {
		return answer, false, err
	}
	header, body, err := s.place(ctx, operation, charged, nil)
	return idempotency.Answer(http.StatusCreated, header, body), err == nil, err
}
