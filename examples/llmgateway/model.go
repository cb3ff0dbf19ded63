package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// event is a piece of an answer, or, at the end, what it has cost.
type event struct {
	Delta string `json:"delta,omitempty"`
	Usage *usage `json:"usage,omitempty"`
}

type usage struct {
	Prompt int64 `json:"prompt_tokens"`
	Answer int64 `json:"completion_tokens"`
	Total  int64 `json:"total_tokens"`
}

// done ends a stream.
const done = "[DONE]"

// The models that the server pretends to be.
const (
	steady  = "steady"
	moody   = "moody"   // any of the others, at random
	fragile = "fragile" // breaks off in the middle
	silent  = "silent"  // does not say what it has used
	deep    = "deep"    // uses more than it says, and more than was asked for
	busy    = "busy"    // refuses
)

// model is a server that pretends to be a language model.
type model struct {
	url    string
	think  func(context.Context) error
	asked  atomic.Int64
	server *http.Server
	served chan struct{}
}

// thinking takes this long for each piece of an answer.
func thinking(pace time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(pace):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// startModel starts a model, which calls think before each piece of an answer.
func startModel(think func(context.Context) error) (*model, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &model{url: "http://" + listener.Addr().String(), think: think, served: make(chan struct{})}
	m.server = &http.Server{Handler: m, ReadTimeout: 10 * time.Second}
	go func() {
		defer close(m.served)
		_ = m.server.Serve(listener)
	}()
	return m, nil
}

func (m *model) stop() {
	_ = m.server.Close()
	<-m.served
}

var errTired = errors.New("the model is tired")

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.asked.Add(1)
	var q question
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	kind := q.Model
	if kind == moody {
		kind = []string{steady, steady, fragile, silent, deep}[rand.IntN(5)]
	}
	if kind == busy {
		w.Header().Set("Retry-After", "2")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return
	}
	if err := m.answer(r.Context(), w, q, kind); err != nil {
		panic(http.ErrAbortHandler) // the connection breaks
	}
}

// answer streams a text that is shorter than it may be.
func (m *model) answer(ctx context.Context, w http.ResponseWriter, q question, kind string) error {
	send := func(e event) error {
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "data: %s\n\n", data)
		return errors.Join(err, http.NewResponseController(w).Flush())
	}
	words := strings.Fields("The water rises, the gate stays shut, and the boats wait until both sides are level.")
	most := q.MaxTokens
	if most == 0 {
		most = usualAnswer
	}
	total := usage{Prompt: about(q.Prompt) + 4} // what the model puts before it
	w.Header().Set("Content-Type", "text/event-stream")
	if err := http.NewResponseController(w).Flush(); err != nil {
		return err
	}
	for n := 0; total.Answer < most*2/5; n++ {
		if err := m.think(ctx); err != nil {
			return err
		}
		if kind == fragile && total.Answer > most/5 {
			return errTired
		}
		delta := words[n%len(words)] + " " + words[(n+1)%len(words)] + " "
		total.Answer += about(delta)
		if err := send(event{Delta: delta}); err != nil {
			return err
		}
	}
	if kind == deep {
		total.Answer += 2 * most // its thoughts, which it keeps to itself
	}
	total.Total = total.Prompt + total.Answer
	if kind != silent {
		if err := send(event{Usage: &total}); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "data: %s\n\n", done)
	return err
}
