package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// The program itself: it checks what has happened, and exits with 1 if that is wrong.
func TestRun(t *testing.T) {
	for name, args := range map[string]func(t *testing.T) []string{
		"memory": func(*testing.T) []string { return nil },
		"Redis":  func(t *testing.T) []string { return []string{"-redis", redistest.Start(t).URL()} },
	} {
		t.Run(name, func(t *testing.T) {
			args := args(t)
			var stdout, stderr bytes.Buffer
			if code := run(args, &stdout, &stderr); code != 0 {
				t.Fatalf("exit code %d\n%s%s", code, &stdout, &stderr)
			}
			for _, line := range []string{
				"13 deliveries, 1 of them repeated after a 503",
				"4 events handled once, and 1 more ignored as older",
				"2 deliveries without an ID kept for a person; a forged event refused",
				"4 mails sent, none more than 1 times",
				"1 mail of unknown outcome, which a person resolved",
			} {
				if !strings.Contains(stdout.String(), line) {
					t.Errorf("it does not say %q", line)
				}
			}
			if t.Failed() {
				t.Logf("\n%s", &stdout)
			}
		})
	}
}

func TestRunFails(t *testing.T) {
	for _, args := range [][]string{{"-redis", "127.0.0.1:1"}, {"-redis", "redis://127.0.0.1:1"}, {"-nonsense"}, {"more"}} {
		var stdout, stderr bytes.Buffer
		if code := run(args, &stdout, &stderr); code == 0 || stderr.Len() == 0 {
			t.Errorf("%v: exit code %d, %s", args, code, &stderr)
		}
	}
}

// fixture is everything but the provider and the network, with faked time.
type fixture struct {
	*testing.T
	store    *storetest.Faulty
	payments *payments
	queue    *queue
	mailer   *mailer
	receiver *receiver
	consumer *consumer
}

var secret = []byte("secret")

func inBubble(t *testing.T, test func(f fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewFaulty(memstore.New())
		f := fixture{T: t, store: st, payments: newPayments(), queue: newQueue(), mailer: newMailer()}
		var err error
		if f.receiver, err = newReceiver(st, secret, f.payments, f.queue); err != nil {
			t.Fatal(err)
		}
		if f.consumer, err = newConsumer(st, f.queue, f.mailer); err != nil {
			t.Fatal(err)
		}
		test(f)
		st.Mend(storetest.Any)
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
}

// post delivers an event with this signature, or a valid one if it is empty.
func (f fixture) post(e event, signature string) *httptest.ResponseRecorder {
	f.Helper()
	body, err := json.Marshal(e)
	if err != nil {
		f.Fatal(err)
	}
	return f.postBody(e.ID, body, signature)
}

func (f fixture) postBody(id string, body []byte, signature string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	req.Header.Set(idHeader, id)
	req.Header.Set(timeHeader, strconv.FormatInt(time.Now().Unix(), 10))
	if signature == "" {
		signature = sign(secret, req.Header, body)
	}
	req.Header.Set(signatureHeader, signature)
	w := httptest.NewRecorder()
	f.receiver.ServeHTTP(w, req)
	return w
}

func (f fixture) answers(w *httptest.ResponseRecorder, status int) {
	f.Helper()
	if w.Code != status {
		f.Fatalf("status %d, want %d: %s", w.Code, status, w.Body)
	}
}

// updated checks how many events were handled.
func (f fixture) updated(want int) {
	f.Helper()
	if updates, _ := f.payments.counts(); updates != want {
		f.Errorf("%d updates, want %d", updates, want)
	}
}

var paid = event{ID: "evt-1", Payment: "p", Version: 2, Status: "paid"}

func TestEventIsHandledOnceInThreeDays(t *testing.T) {
	inBubble(t, func(f fixture) {
		for range 3 {
			f.answers(f.post(paid, ""), http.StatusOK)
			f.updated(1)
			time.Sleep(35 * time.Hour)
		}
		f.answers(f.post(paid, ""), http.StatusOK) // after 105 hours
		f.updated(2)
	})
}

func TestTwinWaits(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.queue.deliveries = make(chan message) // so that the first one is in flight until it is read
		done := make(chan int, 2)
		for range 2 {
			go func() { done <- f.post(paid, "").Code }()
		}
		synctest.Wait()
		if len(done) > 0 {
			t.Error("a twin was answered before the event was handled")
		}
		<-f.queue.deliveries
		<-f.queue.deliveries
		if a, b := <-done, <-done; a != http.StatusOK || b != http.StatusOK {
			t.Errorf("answers %d, %d", a, b)
		}
		f.updated(1)
	})
}

func TestOlderEventIsIgnored(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.answers(f.post(paid, ""), http.StatusOK)
		f.answers(f.post(event{ID: "evt-0", Payment: "p", Version: 1, Status: "created"}, ""), http.StatusOK)
		if status := f.payments.status("p"); status != "paid" {
			t.Errorf("the payment is %s", status)
		}
		f.updated(1)
		if n := len(f.queue.deliveries); n != 2 { // of one message
			t.Errorf("%d deliveries of mails", n)
		}
	})
}

// A failure, or an outage, is answered 503, and the next delivery runs.
func TestFailures(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.payments.failOnce("p", 2)
		f.answers(f.post(paid, ""), http.StatusServiceUnavailable)
		f.store.Break(storetest.Any, storetest.Down)
		f.answers(f.post(paid, ""), http.StatusServiceUnavailable)
		f.store.Mend(storetest.Any)
		f.updated(0)
		f.answers(f.post(paid, ""), http.StatusOK)
		f.updated(1)
		if dead := f.receiver.dead.all(); len(dead) != 0 {
			t.Errorf("dead letters %v", dead)
		}
	})
}

func TestForgedEvents(t *testing.T) {
	inBubble(t, func(f fixture) {
		recorded := http.Header{idHeader: {"evt-1"}, timeHeader: {strconv.FormatInt(time.Now().Unix(), 10)}}
		recorded.Set(signatureHeader, sign(secret, recorded, []byte("{}")))
		if err := verify(secret, recorded, []byte("{}"), time.Now()); err != nil {
			t.Error(err)
		}
		for name, err := range map[string]error{
			"old":          verify(secret, recorded, []byte("{}"), time.Now().Add(6*time.Minute)),
			"early":        verify(secret, recorded, []byte("{}"), time.Now().Add(-6*time.Minute)),
			"another body": verify(secret, recorded, []byte("{ }"), time.Now()),
			"no header":    verify(secret, http.Header{}, []byte("{}"), time.Now()),
			"another key":  verify([]byte("guess"), recorded, []byte("{}"), time.Now()),
		} {
			if !errors.Is(err, errSignature) {
				t.Errorf("%s: %v", name, err)
			}
		}
		recorded.Set(signatureHeader, "v1,AAAA "+recorded.Get(signatureHeader))
		if err := verify(secret, recorded, []byte("{}"), time.Now()); err != nil {
			t.Errorf("one of two signatures: %v", err)
		}
		f.answers(f.post(paid, "v1,AAAA"), http.StatusUnauthorized)
		f.answers(f.post(event{}, "v1,AAAA"), http.StatusUnauthorized)
		f.updated(0)
		if dead := f.receiver.dead.all(); len(dead) != 0 {
			t.Errorf("a forger fills the dead letters: %v", dead)
		}
	})
}

// What no delivery can change is kept for a person.
func TestDeadLettersOfEvents(t *testing.T) {
	for name, id := range map[string]string{"no ID": "", "an ID that is too long": strings.Repeat("x", 1025)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				e := paid
				e.ID = id
				f.answers(f.post(e, ""), http.StatusOK)
				dead := f.receiver.dead.all()
				if len(dead) != 1 || !strings.Contains(dead[0].message.Text, `"paid"`) || !errors.Is(dead[0].err, guard.ErrInvalidOperation) {
					t.Errorf("dead letters %v", dead)
				}
				f.updated(0)
			})
		})
	}
	inBubble(t, func(f fixture) {
		f.answers(f.postBody("evt-1", []byte("{"), ""), http.StatusOK)
		if dead := f.receiver.dead.all(); len(dead) != 1 || dead[0].message != (message{ID: "evt-1", Text: "{"}) {
			t.Errorf("dead letters %v", dead)
		}
	})
}

func TestEventTooLarge(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.answers(f.postBody("evt-1", bytes.Repeat([]byte("x"), maxEvent+1), ""), http.StatusBadRequest)
	})
}

// consume lets two consumers work until the queue is empty.
func (f fixture) consume() {
	f.Helper()
	ctx, stop := context.WithTimeout(f.Context(), time.Hour)
	for range 2 {
		go f.consumer.run(ctx)
	}
	err := f.queue.wait(ctx)
	stop()
	synctest.Wait()
	if err != nil {
		f.Fatal(err)
	}
}

func (f fixture) sent(id string, want int) {
	f.Helper()
	if n := f.mailer.sent[id]; n != want {
		f.Errorf("mail %s was sent %d times, want %d", id, n, want)
	}
}

func TestMailIsSentOnce(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.mailer.refuseOnce("refused")
		f.queue.send(message{ID: "m-1", Text: "refused"})
		f.queue.send(message{ID: "m-2", Text: "fine"})
		f.consume()
		f.sent("m-1", 1)
		f.sent("m-2", 1)
		if dead := f.consumer.dead.all(); len(dead) != 0 {
			t.Errorf("dead letters %v", dead)
		}
		if f.queue.returned.Load() == 0 {
			t.Error("the refused one was not returned")
		}
	})
}

// A mail of unknown outcome waits for a person, who finds out whether it was sent.
func TestMailOfUnknownOutcome(t *testing.T) {
	for name, sent := range map[string]bool{"sent": true, "not sent": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				f.mailer.breakOnce("broken")
				f.queue.send(message{ID: "m-1", Text: "broken"})
				f.queue.send(message{Text: "no ID"})
				f.consume()
				f.sent("m-1", 0)
				if dead := f.consumer.dead.all(); len(dead) != 3 { // one, and both deliveries of the other
					t.Fatalf("dead letters %v", dead)
				}
				if sent {
					f.mailer.sent["m-1"]++
				}
				if n, err := resolve(t.Context(), f.consumer, f.queue, f.mailer); n != 1 || err != nil {
					t.Fatalf("%d resolved, %v", n, err)
				}
				f.consume()
				f.sent("m-1", 1)
				if dead := f.consumer.dead.all(); len(dead) != 2 {
					t.Errorf("dead letters %v", dead)
				}
			})
		})
	}
}
