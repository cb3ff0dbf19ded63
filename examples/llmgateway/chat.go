package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// chat asks the model, hands on its answer as that streams, and reports what was used so far: who
// hangs up pays for what was answered until then.
type chat struct {
	model   string // its URL
	client  *http.Client
	journal *desk
}

// outcome is how an answer ended.
type outcome string

const (
	complete  outcome = "complete"
	uncounted outcome = "complete, and the model did not say what it cost"
	hungUp    outcome = "the client hung up"
	brokeOff  outcome = "the model broke off"
	neverSent outcome = "the model was not asked, or refused"
)

// patience is how long the gateway waits for a client that reads its answer slowly.
const patience = 10 * time.Second

// errBrokeOff is a stream without an end.
var errBrokeOff = errors.New("the model broke off")

// ServeHTTP runs with a reservation, which the middleware settles when it returns, and when it
// panics.
func (c *chat) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	q := ctx.Value(questionKey{}).(question)
	reservation, _ := tokenbucket.FromContext(ctx) // there is one, since nothing passes without (policy.FailOpen)
	entry := c.journal.begin(ctx, r.Header.Get("X-Request-Id"), estimate(r)["tokens"])
	how := brokeOff // unless it gets further
	defer func() { entry.end(how) }()

	resp, err := c.ask(ctx, q)
	if err != nil {
		switch {
		case unreachable(err):
			how = neverSent
			_ = reservation.Cancel(ctx) // nothing was used; if this fails, the estimate stays
		case ctx.Err() != nil:
			how = hungUp
		} // the model's use is not known otherwise: the estimate stays
		http.Error(w, "the model cannot be reached", http.StatusBadGateway)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		how = neverSent
		_ = reservation.Cancel(ctx)
		// The team is within its limits; it is the gateway that is not.
		w.Header()["Retry-After"] = resp.Header["Retry-After"]
		http.Error(w, "the model takes no more requests", http.StatusServiceUnavailable)
		return
	}

	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	switch counted, err := c.stream(w, resp.Body, about(q.Prompt), func(used int64) {
		if err := reservation.Use("tokens", used); err == nil { // a model may say nonsense
			entry.use(used)
		}
	}); {
	case ctx.Err() != nil:
		how = hungUp
	case err != nil:
		_, _ = fmt.Fprintf(w, "event: error\ndata: %q\n\n", errBrokeOff)
	case counted:
		how = complete
	default:
		how = uncounted
	}
}

// stream hands on the model's events until the last one. It tells use what was used so far, as it
// counts itself, and as the model says at the end, if it does: then it returns true.
func (*chat) stream(w http.ResponseWriter, answer io.Reader, prompt int64, use func(int64)) (counted bool, err error) {
	client := http.NewResponseController(w)
	used := prompt
	_ = client.Flush() // so that the client knows that it was let in; events say whether it has left
	lines := bufio.NewScanner(answer)
	for lines.Scan() {
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok && string(data) != done {
			var e event
			if err := json.Unmarshal(data, &e); err != nil {
				return counted, err
			}
			if e.Usage != nil {
				used, counted = e.Usage.Total, true
			} else {
				used += about(e.Delta)
			}
			use(used)
		} else if ok {
			_, err := fmt.Fprintf(w, "data: %s\n\n", done)
			return counted, err
		}
		_ = client.SetWriteDeadline(time.Now().Add(patience)) // a ResponseWriter that cannot waits longer
		if _, err := fmt.Fprintf(w, "%s\n", lines.Bytes()); err != nil {
			return counted, err
		}
		if len(lines.Bytes()) == 0 { // an event is complete
			if err := client.Flush(); err != nil {
				return counted, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return counted, err
	}
	return counted, errBrokeOff
}

func (c *chat) ask(ctx context.Context, q question) (*http.Response, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.model, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return c.client.Do(req)
}

// unreachable reports whether a request has certainly not been sent.
func unreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
