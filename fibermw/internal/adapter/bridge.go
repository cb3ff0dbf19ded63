package adapter

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"

	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// bridge is a request, and the header of its answer, in the types of net/http.
type bridge struct {
	c       fiber.Ctx
	request *http.Request
	header  http.Header
	pulled  bool        // the header is that of the answer, but for what middleware have changed since
	before  http.Header // the header when it was pulled
	sink    func()      // gets the answer of the rest of the chain; nil for none
}

type bridgeKey struct{}

// bridgeOf returns the bridge of the request that a context has at the time.
func bridgeOf(c fiber.Ctx) *bridge {
	if b, ok := c.Locals(bridgeKey{}).(*bridge); ok {
		return b
	}
	if local := c.RequestCtx().LocalAddr(); local.Network() == "unix" { // as a server of net/http says it
		c.SetContext(context.WithValue(c.Context(), http.LocalAddrContextKey, local))
	}
	b := &bridge{c: c, request: newRequest(c), header: http.Header{}}
	c.Locals(bridgeKey{}, b)
	return b
}

// newRequest returns a request of copies. Its body is fiber's, which is read during the request only.
func newRequest(c fiber.Ctx) *http.Request {
	from := c.Request()
	target := string(from.RequestURI())
	u, err := url.ParseRequestURI(target)
	if err != nil { // fiber has routed it
		u = &url.URL{Path: string(from.URI().Path())}
	}
	r := (&http.Request{
		Method: string(from.Header.Method()), URL: u, RequestURI: target, Host: string(from.Host()),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header, from.Header.Len()),
		RemoteAddr: c.RequestCtx().RemoteAddr().String(), TLS: c.RequestCtx().TLSConnectionState(),
	}).WithContext(contextOf(c))
	for name, value := range from.Header.All() {
		if key := http.CanonicalHeaderKey(string(name)); key != "Host" {
			r.Header[key] = append(r.Header[key], string(value))
		}
	}
	switch {
	case from.IsBodyStream():
		r.Body, r.ContentLength = io.NopCloser(&streamed{c: c}), int64(from.Header.ContentLength())
	case len(from.Body()) > 0:
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(from.Body())), int64(len(from.Body()))
		if from.Header.ContentLength() < 0 { // chunked
			r.ContentLength = -1
		}
	default:
		r.Body = http.NoBody
	}
	return r
}

// streamed is the body of a request that fiber streams (Config.StreamRequestBody). The first read
// takes all of it into memory, up to Config.BodyLimit, where the handler finds it too: fasthttp
// cannot take back what has been read of a stream.
type streamed struct {
	c    fiber.Ctx
	read io.Reader
}

func (s *streamed) Read(p []byte) (int, error) {
	if s.read == nil {
		s.read = s.load()
	}
	return s.read.Read(p)
}

func (s *streamed) load() io.Reader {
	from := s.c.Request()
	if !from.IsBodyStream() { // other middleware has read it
		return bytes.NewReader(from.Body())
	}
	limit := int64(s.c.App().Config().BodyLimit)
	body, err := io.ReadAll(io.LimitReader(from.BodyStream(), limit+1))
	if err == nil && int64(len(body)) > limit {
		err = &http.MaxBytesError{Limit: limit}
	}
	if err != nil {
		s.c.RequestCtx().SetConnectionClose() // the rest would be the next request
		from.SetBodyStream(broken{err}, -1)
		return broken{err}
	}
	from.SetBody(body)
	return bytes.NewReader(body)
}

// answered gives the answer of the rest of the chain to the middleware that waits for it.
func (b *bridge) answered() {
	if b.sink != nil {
		b.sink()
	}
}

// captured gives the answer to a capture, and restores the answer before. A stream that is not kept
// is sent when all handlers have returned: it passes. The context outside is that of the request.
func (b *bridge) captured(outside context.Context, w *httpmw.Capture, before *snapshot) {
	resp := b.c.Response()
	status := resp.StatusCode()
	if b.late() || !b.readStream(w) {
		w.Pass(status)
		return
	}
	if silent(resp, before.StatusCode()) {
		replace(w.Header(), b.fields())
		b.restore(before)
		if outside.Err() == nil && !middleware.Over(b.c.Context()) { // or the handler has given up
			w.SetStatus(status)
		}
		return
	}
	replace(w.Header(), b.fields())
	body := slices.Clone(resp.Body())
	b.restore(before)
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body) // into memory
	}
}

// late reports whether the answer, of unknown length, or another protocol begins when all handlers
// have returned.
func (b *bridge) late() bool {
	resp := b.c.Response()
	return b.c.RequestCtx().Hijacked() || resp.IsBodyStream() && resp.Header.ContentLength() < 0
}

// readStream makes an answer that is a stream of known length one with a body. It reports false if
// the stream is larger than what the capture keeps, or breaks off, as it then does for the client.
func (b *bridge) readStream(w *httpmw.Capture) bool {
	resp := b.c.Response()
	if !resp.IsBodyStream() {
		return true
	}
	length := resp.Header.ContentLength()
	if !w.Fits(length) {
		return false
	}
	body, err := io.ReadAll(io.LimitReader(resp.BodyStream(), int64(length)))
	if err == nil && len(body) < length {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		resp.SetBodyStream(io.MultiReader(bytes.NewReader(body), broken{err}), length)
		return false
	}
	resp.SetBody(body)
	return true
}

// broken is a reader that fails.
type broken struct{ error }

func (b broken) Read([]byte) (int, error) { return 0, b.error }

// silent reports whether handlers have not answered, if the status was this one before.
func silent(r *fasthttp.Response, before int) bool {
	return r.StatusCode() == before && !r.IsBodyStream() && len(r.Body()) == 0
}

func replace(h, with http.Header) {
	clear(h)
	for name, values := range with {
		h[name] = values
	}
}

// fields returns the header of the answer.
func (b *bridge) fields() http.Header {
	if b.pulled {
		return b.header
	}
	clear(b.header)
	h := &b.c.Response().Header
	h.SetNoDefaultContentType(true) // or one would be among them that no handler has set
	for name, value := range h.All() {
		if _, own := owned[string(name)]; !own {
			key := string(name)
			b.header[key] = append(b.header[key], string(value))
		}
	}
	h.SetNoDefaultContentType(b.c.App().Config().DisableDefaultContentType)
	b.pulled, b.before = true, maps.Clone(b.header)
	return b.header
}

// push makes the changes of middleware to the header, before other code has the answer.
func (b *bridge) push() {
	if !b.pulled {
		return
	}
	b.pulled = false
	h := &b.c.Response().Header
	for name, values := range b.before {
		if !slices.Equal(values, b.header[name]) {
			h.Del(name)
		}
	}
	for name, values := range b.header {
		if _, own := owned[name]; own || slices.Equal(values, b.before[name]) {
			continue
		}
		for _, value := range values {
			h.Add(name, value)
		}
	}
}

// restore makes the answer that of before.
func (b *bridge) restore(before *snapshot) {
	before.CopyTo(b.c.Response())
	b.pulled = false
}

// owned are the fields that fasthttp makes of the answer itself.
var owned = map[string]struct{}{"Content-Length": {}, "Date": {}, "Transfer-Encoding": {}, "Trailer": {}}

// writer is the http.ResponseWriter of an answer.
type writer bridge

func (w *writer) Header() http.Header { return (*bridge)(w).fields() }

// WriteHeader sets the status. Fasthttp sends no informational answers.
func (w *writer) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.c.Response().SetStatusCode(status)
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.c.Response().AppendBody(p)
	return len(p), nil
}

// snapshot is an answer before a handler.
type snapshot struct{ *fasthttp.Response }

func newSnapshot(r *fasthttp.Response) *snapshot {
	s := &snapshot{fasthttp.AcquireResponse()}
	r.CopyTo(s.Response)
	return s
}

func (s *snapshot) release() { fasthttp.ReleaseResponse(s.Response) }
