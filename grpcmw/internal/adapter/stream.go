package adapter

import (
	"context"
	"fmt"
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
)

// Stream is a stream as its handler sees it: with a context of its own, and with the request that a
// key function has read before it.
type Stream struct {
	grpc.ServerStream
	ctx    context.Context
	method string
	single bool // the client sends one message only

	read    bool // a key function has asked for the request
	request proto.Message
	err     error // of reading it
}

// NewStream returns a stream and its call.
func NewStream(stream grpc.ServerStream, info *grpc.StreamServerInfo) (*Stream, *grpcmw.Call) {
	s := &Stream{ServerStream: stream, ctx: stream.Context(), method: info.FullMethod, single: !info.IsClientStream}
	return s, grpcmw.NewStreamCall(s.ctx, info.FullMethod, s.firstRequest)
}

// Address returns an address that all interceptors of a call see; zero outside of a server.
func Address(ctx context.Context) uintptr {
	call := reflect.ValueOf(grpc.ServerTransportStreamFromContext(ctx))
	if call.Kind() != reflect.Pointer {
		return 0
	}
	return call.Pointer()
}

// WithContext sets the handler's context.
func (s *Stream) WithContext(ctx context.Context) { s.ctx = ctx }

// Context is the handler's.
func (s *Stream) Context() context.Context { return s.ctx }

// firstRequest reads the only request of a stream, and keeps it for the handler.
func (s *Stream) firstRequest() (any, error) {
	if !s.single {
		return nil, keys.NotProvided("grpcmw: the client streams its requests to %s, so no request is known before its handler runs", s.method)
	}
	if !s.read {
		s.read = true
		if s.request, s.err = newRequest(s.method); s.err == nil {
			s.err = s.ServerStream.RecvMsg(s.request)
		}
	}
	return s.request, s.err
}

// RecvMsg gives the handler the request that was read before, and then what comes.
func (s *Stream) RecvMsg(m any) error {
	if s.request == nil {
		return s.ServerStream.RecvMsg(m)
	}
	request := s.request
	s.request = nil
	if s.err != nil {
		return s.err
	}
	dst, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("grpcmw: the handler of %s receives a %T, not a protobuf message", s.method, m)
	}
	proto.Reset(dst)
	if dst.ProtoReflect().Descriptor() == request.ProtoReflect().Descriptor() {
		proto.Merge(dst, request)
		return nil
	}
	text, err := proto.Marshal(request) // the handler knows the message by another type
	if err != nil {
		return err
	}
	return proto.Unmarshal(text, dst)
}
