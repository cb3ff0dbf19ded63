// Llmgateway stands between teams and a language model. Each team has a number of requests and a
// number of tokens a minute. What an answer will cost is not known before it ends, so the gateway
// reserves an estimate, counts what is used while the answer streams, and settles at the end: when
// it is complete, when the client hangs up, and when the model breaks off. Run it, open the address
// that it prints, and press the buttons:
//
//	go run ./examples/llmgateway
//
// gateway.go and chat.go are the parts to copy; model.go pretends to be the model, and desk.go
// shows the requests. With -redis, any number of gateways share the budgets.
package main

import (
	"flag"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

func main() { program().Main() }

func program() demo.Program {
	flags := flag.NewFlagSet("llmgateway", flag.ContinueOnError)
	requests := flags.Int64("requests", 20, "`requests` a minute of each team")
	tokens := flags.Int64("tokens", 20_000, "`tokens` a minute of each team")
	pace := flags.Duration("pace", 30*time.Millisecond, "how `long` the model takes for a piece of an answer")
	return demo.Program{Flags: flags, Handler: func(st store.Store) (http.Handler, func(), error) {
		model, err := startModel(thinking(*pace))
		if err != nil {
			return nil, nil, err
		}
		client := &http.Client{Transport: &http.Transport{ResponseHeaderTimeout: time.Minute}}
		end := func() {
			model.stop()
			client.CloseIdleConnections()
		}
		handler, err := newGateway(st, client, model.url, tokenbucket.Limits{
			tokenbucket.PerMinute(*requests).Named("requests"),
			tokenbucket.PerMinute(*tokens).Named("tokens"),
		})
		if err != nil {
			end()
		}
		return handler, end, err
	}}
}
