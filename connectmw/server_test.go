package connectmw_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things/thingsconnect"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// service is a server whose methods are set by tests.
type service struct {
	thingsconnect.UnimplementedThingsHandler
	runs  atomic.Int64
	make  func(context.Context, *things.MakeRequest) (*things.Thing, error)
	get   func()
	watch func(*things.MakeRequest, *serverStream) error
	talk  func(context.Context, *bidiStream) error
}

type serverStream struct {
	*connect.ServerStream[things.Thing]
	ctx context.Context // that of the stream
}

func (s *serverStream) Context() context.Context { return s.ctx }

type bidiStream struct {
	*connect.BidiStream[things.MakeRequest, things.Thing]
}

func (s *bidiStream) Recv() (*things.MakeRequest, error) { return s.Receive() }

func (s *service) Make(ctx context.Context, r *connect.Request[things.MakeRequest]) (*connect.Response[things.Thing], error) {
	n := s.runs.Add(1)
	thing := &things.Thing{Id: r.Msg.GetId(), Text: "run " + strconv.FormatInt(n, 10)}
	if s.make != nil {
		var err error
		if thing, err = s.make(ctx, r.Msg); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(thing), nil
}

func (s *service) Get(_ context.Context, r *connect.Request[things.GetRequest]) (*connect.Response[things.Thing], error) {
	s.runs.Add(1)
	if s.get != nil {
		s.get()
	}
	return connect.NewResponse(&things.Thing{Id: r.Msg.GetId()}), nil
}

func (s *service) Watch(ctx context.Context, r *connect.Request[things.MakeRequest], stream *connect.ServerStream[things.Thing]) error {
	s.runs.Add(1)
	if s.watch != nil {
		return s.watch(r.Msg, &serverStream{stream, ctx})
	}
	return stream.Send(&things.Thing{Id: r.Msg.GetId()})
}

func (s *service) Talk(ctx context.Context, stream *connect.BidiStream[things.MakeRequest, things.Thing]) error {
	s.runs.Add(1)
	if s.talk != nil {
		return s.talk(ctx, &bidiStream{stream})
	}
	for {
		r, err := stream.Receive()
		if err != nil {
			return nil //nolint:nilerr // the client has closed its side
		}
		if err := stream.Send(&things.Thing{Id: r.GetId()}); err != nil {
			return err
		}
	}
}

func (s *service) ran(t *testing.T, want int64) {
	t.Helper()
	if got := s.runs.Load(); got != want {
		t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

// setHeader and setTrailer add to the answer of a unary call.
func setHeader(ctx context.Context, pairs ...string) {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	addPairs(info.ResponseHeader(), pairs)
}

func setTrailer(ctx context.Context, pairs ...string) {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	addPairs(info.ResponseTrailer(), pairs)
}

func addPairs(h http.Header, pairs []string) http.Header {
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// around is an interceptor of another module, for unary calls and streams of handlers.
type around func(ctx context.Context, handler func(context.Context) error) error

func (a around) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (resp connect.AnyResponse, err error) {
		err = a(withRequest(ctx, req.Header()), func(ctx context.Context) (err error) {
			resp, err = next(ctx, req)
			return err
		})
		return resp, err
	}
}

func (a around) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return a(withRequest(ctx, conn.RequestHeader()), func(ctx context.Context) error { return next(ctx, conn) })
	}
}

func (around) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

type requestKey struct{}

func withRequest(ctx context.Context, h http.Header) context.Context {
	return context.WithValue(ctx, requestKey{}, h)
}

// incoming returns the values of a field of the request.
func incoming(ctx context.Context, name string) []string {
	h, _ := ctx.Value(requestKey{}).(http.Header)
	return h.Values(name)
}

type userKey = rpctest.UserKey

// outermost recovers from panics, and authenticates: it trusts the header X-User.
var outermost = around(func(ctx context.Context, handler func(context.Context) error) (err error) {
	defer func() {
		if recover() != nil {
			err = failure(connect.CodeInternal, "panic")
		}
	}()
	if user := incoming(ctx, "X-User"); len(user) == 1 {
		ctx = context.WithValue(ctx, userKey{}, user[0])
	}
	return handler(ctx)
})

// serve starts a server behind interceptors, and returns a client of it.
func serve(t *testing.T, s *service, chain ...connect.Interceptor) client {
	t.Helper()
	return dial(t, listen(t, s, chain...))
}

func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

func listen(t *testing.T, s *service, chain ...connect.Interceptor) (url string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(thingsconnect.NewThingsHandler(s, connect.WithInterceptors(append([]connect.Interceptor{outermost}, chain...)...)))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = protocols()
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

func dial(t *testing.T, url string, chain ...connect.Interceptor) client {
	t.Helper()
	return dialWith(t, url, connect.WithInterceptors(chain...))
}

func dialWith(t *testing.T, url string, opts ...connect.ClientOption) client {
	t.Helper()
	speaks := new(http.Protocols)
	speaks.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: speaks}
	t.Cleanup(transport.CloseIdleConnections)
	return client{t, thingsconnect.NewThingsClient(&http.Client{Transport: transport}, url, opts...)}
}

// client calls with the header of a context.
type client struct {
	t      *testing.T
	things thingsconnect.ThingsClient
}

type headerKey struct{}

// sending returns the context of a call with these header fields: name, value, name, value.
func sending(ctx context.Context, pairs ...string) context.Context {
	h, _ := ctx.Value(headerKey{}).(http.Header)
	if h = h.Clone(); h == nil {
		h = http.Header{}
	}
	return context.WithValue(ctx, headerKey{}, addPairs(h, pairs))
}

func with(t *testing.T, pairs ...string) context.Context { return sending(t.Context(), pairs...) }

func copyHeader(ctx context.Context, to http.Header) {
	h, _ := ctx.Value(headerKey{}).(http.Header)
	for name, values := range h {
		to[name] = append(to[name], values...)
	}
}

func request[T any](ctx context.Context, m *T) *connect.Request[T] {
	r := connect.NewRequest(m)
	copyHeader(ctx, r.Header())
	return r
}

// option is what becomes of the metadata of an answer. That of an error is in both.
type option func(header, trailer http.Header)

func answered[T any](resp *connect.Response[T], err error, opts []option) (*T, error) {
	if err != nil {
		var failed *connect.Error
		for _, o := range opts {
			if errors.As(err, &failed) {
				o(failed.Meta(), failed.Meta())
			}
		}
		return nil, err
	}
	for _, o := range opts {
		o(resp.Header(), resp.Trailer())
	}
	return resp.Msg, nil
}

func (c client) Make(ctx context.Context, r *things.MakeRequest, opts ...option) (*things.Thing, error) {
	resp, err := c.things.Make(ctx, request(ctx, r))
	return answered(resp, err, opts)
}

func (c client) Get(ctx context.Context, r *things.GetRequest) (*things.Thing, error) {
	resp, err := c.things.Get(ctx, request(ctx, r))
	return answered(resp, err, nil)
}

// watching is a stream of answers. Connect's own call returns when the first one comes.
type watching struct {
	stream *connect.ServerStreamForClient[things.Thing]
	err    error
	begun  chan struct{} // is closed when the others are set
	opts   []option
}

func (c client) Watch(ctx context.Context, r *things.MakeRequest, opts ...option) (*watching, error) {
	w := &watching{begun: make(chan struct{}), opts: opts}
	go func() {
		defer close(w.begun)
		w.stream, w.err = c.things.Watch(ctx, request(ctx, r))
	}()
	c.t.Cleanup(func() {
		if <-w.begun; w.err == nil {
			_ = w.stream.Close()
		}
	})
	return w, nil
}

func (w *watching) Recv() (*things.Thing, error) {
	if <-w.begun; w.err != nil {
		return nil, w.err
	}
	if w.stream.Receive() {
		return w.stream.Msg(), nil
	}
	for _, o := range w.opts {
		o(w.stream.ResponseHeader(), w.stream.ResponseTrailer())
	}
	if err := w.stream.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}

// talking is a stream of requests and answers.
type talking struct {
	*connect.BidiStreamForClient[things.MakeRequest, things.Thing]
}

func (c client) Talk(ctx context.Context) (talking, error) {
	stream := c.things.Talk(ctx)
	copyHeader(ctx, stream.RequestHeader())
	_ = stream.Send(nil) // the header, without a message
	c.t.Cleanup(func() {
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
	})
	return talking{stream}, nil
}

func (s talking) Recv() (*things.Thing, error) { return s.Receive() }

func (s talking) CloseSend() error { return s.CloseRequest() }

// is checks an answer.
func is(t *testing.T, got *things.Thing, err error, text string) {
	t.Helper()
	if err != nil || got.GetText() != text {
		t.Fatalf("%v, %v; want %q", got, err, text)
	}
}

// failure returns an error with a code, or nil for zero.
func failure(code connect.Code, text string) error {
	if code == 0 {
		return nil
	}
	return connect.NewError(code, errors.New(text))
}

// codeOf returns the code of an error, zero without one.
func codeOf(err error) connect.Code {
	if err == nil {
		return 0
	}
	return connect.CodeOf(err)
}

// denies checks that an error is a denial, with the details of its reason.
func denies(t *testing.T, err error, reason policy.Reason) {
	t.Helper()
	rpctest.Denied(t, framework{}, err, reason)
}

// all returns everything that a client gets with an error.
func all(failed *connect.Error) string {
	text := failed.Error() + fmt.Sprint(failed.Meta())
	for _, d := range failed.Details() {
		value, err := d.Value()
		text += fmt.Sprint(value, err)
	}
	return text
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
