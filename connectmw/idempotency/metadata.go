package idempotency

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"
)

// recorder finds out what metadata a handler has given to its answer in the call's context, beside
// that of its connect.Response or connect.Error.
type recorder struct {
	info            connect.CallInfo // nil for a call that is not a server's
	header, trailer http.Header      // before the handler
}

func record(ctx context.Context) recorder {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return recorder{}
	}
	return recorder{info, info.ResponseHeader().Clone(), info.ResponseTrailer().Clone()}
}

// recorded returns header and trailer of the answer, but for what belongs to one transmission, one
// client, or the protocol.
func (r recorder) recorded(resp connect.AnyResponse, err *connect.Error) (header, trailer http.Header) {
	header, trailer = http.Header{}, http.Header{}
	if r.info != nil {
		add(header, changed(r.header, r.info.ResponseHeader()))
		add(trailer, changed(r.trailer, r.info.ResponseTrailer()))
	}
	switch {
	case err != nil && !connect.IsWireError(err): // connect sends none of an error that another server made
		add(trailer, err.Meta())
	case err == nil && resp != nil:
		add(header, resp.Header())
		add(trailer, resp.Trailer())
	}
	return header, trailer
}

// changed returns the fields that were not the same before.
func changed(before, after http.Header) http.Header {
	h := maps.Clone(after)
	maps.DeleteFunc(h, func(name string, values []string) bool { return slices.Equal(values, before[name]) })
	return h
}

// add adds the fields that a repeat gets, too.
func add(all, some http.Header) {
	for name, values := range some {
		switch {
		case strings.HasPrefix(name, "Grpc-"), strings.HasPrefix(name, "Connect-"), strings.HasPrefix(name, "Content-"):
		case name == "Date", name == "Server", name == "Set-Cookie", name == "Trailer", name == "Accept-Encoding",
			name == replayedHeader, name == statusHeader:
		default:
			all[name] = append(all[name], values...)
		}
	}
}
