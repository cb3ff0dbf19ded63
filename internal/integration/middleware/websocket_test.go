package middleware_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
)

// A WebSocket works behind each middleware. The library answers the upgrade with WriteHeader, and
// then hijacks the connection.
func TestWebSocket(t *testing.T) {
	for name, f := range map[string]mwtest.Framework{
		"gin": onGin, "echo v4": onEchoV4, "echo v5": onEchoV5, "ServeMux": onServeMux, "chi": onChi, "gorilla": onGorilla,
	} {
		t.Run(name, func(t *testing.T) {
			mwtest.RunThrough(t, f, "received one, received two", answerWebSocket, seeWebSocket)
		})
	}
}

func answerWebSocket(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // it has been answered
	}
	defer conn.CloseNow() //nolint:errcheck // the client has the answer
	for {
		kind, text, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		if err := conn.Write(r.Context(), kind, append([]byte("received "), text...)); err != nil {
			return
		}
	}
}

func seeWebSocket(ctx context.Context, client *http.Client, url string) string {
	conn, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		HTTPClient: client, HTTPHeader: http.Header{"Idempotency-Key": {"k"}},
	})
	if err != nil {
		return "no WebSocket"
	}
	defer conn.CloseNow() //nolint:errcheck // it has been closed, or there is nothing left to send
	var answers []string
	for _, text := range []string{"one", "two"} {
		if err := conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			return "closed"
		}
		_, answer, err := conn.Read(ctx)
		if err != nil {
			return "closed"
		}
		answers = append(answers, string(answer))
	}
	_ = conn.Close(websocket.StatusNormalClosure, "")
	return strings.Join(answers, ", ")
}
