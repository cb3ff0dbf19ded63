package mwtest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strings"
	"time"
)

// passages are the ways in which a handler can use a connection.
var passages = []passage{
	{"a controller reaches the connection", "done", false, controller},
	{"a read deadline applies", "read: true", false, readDeadline},
	{"a write deadline applies", "no answer", false, writeDeadline},
	{"events arrive as they are written", "0 1 2", false, events},
	{"early hints are sent", "103 </style.css>; 200 body", false, earlyHints},
	{"trailers", `body, then "4" and "yes"`, false, trailers},
	{"the files of a form are removed", "removed", false, formFiles},
	{"a connection can be hijacked", "received hello\n", true, takeover},
}

// controller tests that a http.ResponseController, and a http.Flusher, reach the connection.
func controller(t *rig) (http.HandlerFunc, func(client) string) {
	return func(w http.ResponseWriter, _ *http.Request) {
			c := http.NewResponseController(w)
			complain := func(what string, err error) {
				if err != nil {
					_, _ = fmt.Fprintf(w, "%s: %v, ", what, err)
				}
			}
			complain("SetReadDeadline", c.SetReadDeadline(time.Now().Add(time.Minute)))
			complain("SetWriteDeadline", c.SetWriteDeadline(time.Now().Add(time.Minute)))
			complain("EnableFullDuplex", c.EnableFullDuplex())
			complain("Flush", c.Flush())
			if _, ok := w.(http.Flusher); !ok {
				_, _ = io.WriteString(w, "no http.Flusher, ")
			}
			_, _ = io.WriteString(w, "done")
		}, func(c client) string {
			return c.read(t, nil, keyHeader, "k")
		}
}

// readDeadline sets a deadline for reading the body. The request has no idempotency key, since the
// body of one with a key is read before the handler runs.
func readDeadline(t *rig) (http.HandlerFunc, func(client) string) {
	return func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(-time.Second))
			_, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprint(w, "read: ", err != nil)
		}, func(c client) string {
			body, write := io.Pipe()
			defer write.Close() //nolint:errcheck // a pipe's never fails
			defer context.AfterFunc(c.ctx, func() { _ = write.Close() })()
			return c.read(t, body)
		}
}

func writeDeadline(t *rig) (http.HandlerFunc, func(client) string) {
	return func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(-time.Second))
			_, _ = io.WriteString(w, "too late")
		}, func(c client) string {
			return c.read(t, nil, keyHeader, "k")
		}
}

// events sends server-sent events. The handler writes the next one when the client has received the
// last.
func events(t *rig) (http.HandlerFunc, func(client) string) {
	seen := make(chan struct{}, 3)
	return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-seen:
				case <-time.After(t.patience):
					return
				}
			}
		}, func(c client) string {
			resp, err := c.post(t, nil, keyHeader, "k")
			if err != nil {
				return "no answer"
			}
			defer resp.Body.Close() //nolint:errcheck // it has been read
			var data []string
			for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
				if event, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
					data = append(data, event)
					seen <- struct{}{}
				}
			}
			return strings.Join(data, " ")
		}
}

func earlyHints(t *rig) (http.HandlerFunc, func(client) string) {
	return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "body")
		}, func(c client) string {
			var hints []string
			c.ctx = httptrace.WithClientTrace(c.ctx, &httptrace.ClientTrace{
				Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
					hints = append(hints, fmt.Sprint(code, " ", header.Get("Link"), "; "))
					return nil
				},
			})
			resp, err := c.post(t, nil, keyHeader, "k")
			if err != nil {
				return "no answer"
			}
			return fmt.Sprint(strings.Join(hints, ""), resp.StatusCode, " ", readAll(resp))
		}
}

// trailers are announced, or have the trailer prefix. A field that is set after the header is
// neither.
func trailers(t *rig) (http.HandlerFunc, func(client) string) {
	return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("X-Sum", "4")
			w.Header().Set(http.TrailerPrefix+"X-Late", "yes")
			w.Header().Set("X-Too-Late", ", and what was set too late")
		}, func(c client) string {
			resp, err := c.post(t, nil, keyHeader, "k")
			if err != nil {
				return "no answer"
			}
			body := readAll(resp) // trailers come after it
			return fmt.Sprintf("%s, then %q and %q%s", body, resp.Trailer.Get("X-Sum"), resp.Trailer.Get("X-Late"),
				resp.Header.Get("X-Too-Late")+resp.Trailer.Get("X-Too-Late"))
		}
}

// formFiles tests that the server removes temporary files although a copy of its request parsed the
// form. Chi and gorilla/mux copy the request, and do not remove its files.
func formFiles(t *rig) (http.HandlerFunc, func(client) string) {
	return func(w http.ResponseWriter, r *http.Request) {
			if err := r.ParseMultipartForm(0); err != nil {
				panic(err)
			}
			file, err := r.MultipartForm.File["upload"][0].Open()
			if err != nil {
				panic(err)
			}
			defer file.Close() //nolint:errcheck // it was read from only
			_, _ = io.WriteString(w, file.(*os.File).Name())
		}, func(c client) string {
			var form bytes.Buffer
			writer := multipart.NewWriter(&form)
			part := must(writer.CreateFormFile("upload", "a.txt"))
			// Independent of its limit, the server keeps up to 10 MiB of fields in memory, and no
			// files.
			_, _ = io.WriteString(part, strings.Repeat("x", 100_000))
			_ = writer.Close()
			name := c.read(t, &form, keyHeader, "k", "Content-Type", writer.FormDataContentType())
			c.server.Close() // waits for the request to be over
			switch _, err := os.Stat(name); {
			case !strings.Contains(name, "multipart-"):
				return name
			case os.IsNotExist(err):
				return "removed"
			default:
				_ = os.Remove(name)
				return "left"
			}
		}
}

// takeover uses another protocol on the connection.
func takeover(t *rig) (http.HandlerFunc, func(client) string) {
	return func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close() //nolint:errcheck // the client has the answer
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = rw.Flush()
			line, _ := rw.ReadString('\n')
			_, _ = rw.WriteString("received " + line)
			_ = rw.Flush()
		}, func(c client) string {
			resp, err := c.post(t, nil, keyHeader, "k", "Connection", "Upgrade", "Upgrade", "echo")
			if err != nil {
				return "no answer"
			}
			defer resp.Body.Close() //nolint:errcheck // the connection is done with
			conn, ok := resp.Body.(io.ReadWriter)
			if !ok {
				return fmt.Sprint("no upgrade, but ", resp.StatusCode)
			}
			_, _ = io.WriteString(conn, "hello\n")
			line, _ := bufio.NewReader(conn).ReadString('\n')
			return line
		}
}
