package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// event is what the provider says of a payment: its whole state, and not what has changed, so that an
// event that comes late can be ignored.
type event struct {
	ID      string `json:"-"` // is in the header
	Payment string `json:"payment"`
	Version int    `json:"version"` // grows with each change
	Status  string `json:"status"`
	Sent    string `json:"sent"` // differs in each delivery
}

// provider delivers each event twice at once, and again until it is answered 2xx.
type provider struct {
	url                  string
	secret               []byte
	deliveries, repeated atomic.Int64
}

const (
	backoff  = 50 * time.Millisecond
	maxTries = 10
)

func (p *provider) withSecret(secret []byte) *provider { return &provider{url: p.url, secret: secret} }

func (p *provider) counts() (deliveries, repeated int64) {
	return p.deliveries.Load(), p.repeated.Load()
}

// deliver returns when the event was accepted.
func (p *provider) deliver(ctx context.Context, e event) error {
	var twins sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		twins.Go(func() { errs[i] = p.insist(ctx, e) })
	}
	twins.Wait()
	return errors.Join(errs...)
}

func (p *provider) insist(ctx context.Context, e event) error {
	for tries := 1; ; tries++ {
		status, after, err := p.post(ctx, e)
		switch {
		case err != nil:
			return err
		case status == http.StatusOK:
			return nil
		case tries == maxTries:
			return fmt.Errorf("event %s was answered %d, %d times", e.ID, status, tries)
		}
		p.repeated.Add(1)
		select {
		case <-time.After(max(backoff, after)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// post delivers an event once, and returns the answer.
func (p *provider) post(ctx context.Context, e event) (status int, after time.Duration, err error) {
	p.deliveries.Add(1)
	e.Sent = time.Now().Format(time.RFC3339Nano)
	body, err := json.Marshal(e)
	if err != nil {
		return 0, 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	if e.ID != "" {
		req.Header.Set(idHeader, e.ID)
	}
	req.Header.Set(timeHeader, strconv.FormatInt(time.Now().Unix(), 10))
	req.Header.Set(signatureHeader, sign(p.secret, req.Header, body))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 if there is none
	return resp.StatusCode, time.Duration(seconds) * time.Second, nil
}

// payments stands for a table of the application's database.
type payments struct {
	mu             sync.Mutex
	known          map[string]event
	failing        map[event]bool
	updates, older int
}

func newPayments() *payments { return &payments{known: map[string]event{}, failing: map[event]bool{}} }

var errBusy = errors.New("the database is busy")

// failOnce has the next update to a version fail.
func (p *payments) failOnce(payment string, version int) {
	p.failing[event{Payment: payment, Version: version}] = true
}

// update is UPDATE payments SET … WHERE version <= …: it reports false for an event that is older than
// what is known. The same version is no older one, since the update may be a step that runs again.
func (p *payments) update(_ context.Context, e event) (news bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fault := (event{Payment: e.Payment, Version: e.Version}); p.failing[fault] {
		delete(p.failing, fault)
		return false, errBusy
	}
	if e.Version < p.known[e.Payment].Version {
		p.older++
		return false, nil
	}
	p.known[e.Payment] = e
	p.updates++
	return true, nil
}

func (p *payments) status(payment string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[payment].Status
}

func (p *payments) counts() (updates, older int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.updates, p.older
}

type message struct{ ID, Text string }

// queue delivers each message at least twice.
type queue struct {
	deliveries          chan message
	open                sync.WaitGroup // deliveries that are not acknowledged
	delivered, returned atomic.Int64
}

func newQueue() *queue { return &queue{deliveries: make(chan message, 100)} }

func (q *queue) send(m message) {
	for range 2 {
		q.open.Add(1)
		q.deliver(m)
	}
}

func (q *queue) deliver(m message) {
	q.delivered.Add(1)
	q.deliveries <- m
}

func (q *queue) acknowledge() { q.open.Done() }

// giveBack has a message delivered again.
func (q *queue) giveBack(m message, after time.Duration) {
	q.returned.Add(1)
	time.AfterFunc(max(after, backoff), func() { q.deliver(m) })
}

// wait returns when everything is acknowledged.
func (q *queue) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		q.open.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// mailer is a mail server, which sends what it is given, repeats too.
type mailer struct {
	mu                sync.Mutex
	sent              map[string]int  // by the message's ID
	refuses, breaking map[string]bool // by text
}

func newMailer() *mailer {
	return &mailer{sent: map[string]int{}, refuses: map[string]bool{}, breaking: map[string]bool{}}
}

var (
	errRefused = errors.New("the mail server refused the connection")
	errBroken  = errors.New("the connection to the mail server broke")
)

// sendingTakes is how long a mail takes.
const sendingTakes = 20 * time.Millisecond

func (s *mailer) refuseOnce(text string) { s.refuses[text] = true }
func (s *mailer) breakOnce(text string)  { s.breaking[text] = true }

func (s *mailer) connect(m message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses[m.Text] {
		delete(s.refuses, m.Text)
		return errRefused
	}
	return nil
}

func (s *mailer) send(ctx context.Context, m message) error {
	select {
	case <-time.After(sendingTakes):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.breaking[m.Text] {
		delete(s.breaking, m.Text)
		return errBroken
	}
	s.sent[m.ID]++
	return nil
}

func (s *mailer) hasSent(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[id] > 0
}

// counts returns how many mails were sent, and how often the one was that was sent most often.
func (s *mailer) counts() (mails, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.sent {
		most = max(most, n)
	}
	return len(s.sent), most
}

// letter is a message that a person has to look at, and why.
type letter struct {
	message message
	err     error
}

// deadLetters stands for a table, or a queue of its own.
type deadLetters struct {
	mu      sync.Mutex
	letters []letter
}

// keep keeps a message, but not its repeats.
func (d *deadLetters) keep(m message, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.ID == "" || !slices.ContainsFunc(d.letters, func(l letter) bool { return l.message.ID == m.ID }) {
		d.letters = append(d.letters, letter{m, err})
	}
}

func (d *deadLetters) all() []letter {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.letters)
}

func (d *deadLetters) remove(old letter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.letters = slices.DeleteFunc(d.letters, func(l letter) bool { return l.message == old.message })
}
