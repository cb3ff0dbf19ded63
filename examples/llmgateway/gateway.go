package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// teams may use the gateway, by their API keys. Yours are in a database.
var teams = map[string]string{"key-of-search": "search", "key-of-support": "support"}

const (
	maxBody   = 64 << 10 // bytes of a request
	maxAnswer = 4_096    // tokens that a request may ask for
	// usualAnswer is the estimate for an answer of a request that does not say how long it may
	// become.
	usualAnswer = 500
)

// newGateway wires the gateway to the model at a URL.
func newGateway(st store.Store, client *http.Client, model string, plan tokenbucket.Plan) (http.Handler, error) {
	limiter, err := tokenbucket.New(st, "llm", plan)
	if err != nil {
		return nil, err
	}
	desk := newDesk(limiter)
	chat := &chat{model: model, client: client, journal: desk}

	// The order matters: who asks is known before the limit is, and what is asked, since the
	// estimate depends on it. A request that makes no sense costs nothing.
	byTeam := nethttp.ByContext(teamKey{})
	report := nethttp.OnError(func(r *http.Request, err error) { log.Println(r.Method, r.URL.Path, err) }) // of settlements, too
	limit := ratelimit.New(limiter, byTeam, ratelimit.Costs(estimate), report)
	mux := http.NewServeMux()
	mux.Handle("POST /v1/chat/completions", authenticate(decode(limit(chat))))
	mux.Handle("GET /v1/usage", authenticate(ratelimit.Usage(limiter, byTeam)))
	// This is for the page: leave it out, since it shows the budgets to anybody, and fills them.
	if err := desk.show(mux); err != nil {
		return nil, err
	}
	// Other sites must not spend a team's tokens through the browser of a visitor.
	return http.NewCrossOriginProtection().Handler(mux), nil
}

type teamKey struct{}

func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		team, ok := teams[key]
		if !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "no team has this key", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), teamKey{}, team)))
	})
}

// question is the body of a request.
type question struct {
	Model     string `json:"model"`
	Prompt    string `json:"prompt"`
	MaxTokens int64  `json:"max_tokens"` // 0 if the model may decide
}

type questionKey struct{}

// decode reads the request.
func decode(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			http.Error(w, "the request is too large", http.StatusRequestEntityTooLarge)
			return
		}
		var q question
		if err != nil || json.Unmarshal(body, &q) != nil || q.Prompt == "" || q.MaxTokens < 0 || q.MaxTokens > maxAnswer {
			http.Error(w, "the request needs a prompt, and max_tokens of 4096 at most", http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), questionKey{}, q)))
	})
}

// estimate is what a request will cost at most, or usually: it is reserved before the model is
// asked.
func estimate(r *http.Request) tokenbucket.Cost {
	q := r.Context().Value(questionKey{}).(question)
	answer := q.MaxTokens
	if answer == 0 {
		answer = usualAnswer
	}
	return tokenbucket.Cost{"requests": 1, "tokens": about(q.Prompt) + answer}
}

// about estimates the tokens of a text. Yours is the model's own tokenizer.
func about(text string) int64 { return int64(len(text)+3) / 4 }
