package adapter

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
)

// Stream is a stream as its handler sees it, with the request that a key function has read before
// it.
type Stream struct {
	connect.StreamingHandlerConn

	read    bool // a key function has asked for the request
	request proto.Message
	err     error // of reading it
}

// NewStream returns a stream and its call.
func NewStream(ctx context.Context, conn connect.StreamingHandlerConn) (*Stream, *connectmw.Call) {
	s := &Stream{StreamingHandlerConn: conn}
	return s, connectmw.NewStreamCall(ctx, conn, s.firstRequest)
}

// firstRequest reads the only request of a stream, and keeps it for the handler.
func (s *Stream) firstRequest() (any, error) {
	spec := s.Spec()
	if spec.StreamType != connect.StreamTypeServer {
		return nil, keys.NotProvided("connectmw: the client streams its requests to %s, so no request is known before its handler runs", spec.Procedure)
	}
	method, ok := spec.Schema.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, keys.NotProvided("connectmw: %s has no schema (connect.WithSchema), so its request cannot be read", spec.Procedure)
	}
	if !s.read {
		s.read = true
		s.request = newMessage(method.Input())
		s.err = s.StreamingHandlerConn.Receive(s.request)
	}
	return s.request, s.err
}

// newMessage returns an empty message, of the type in generated code if this program has it.
func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	if found, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil {
		return found.New().Interface()
	}
	return dynamicpb.NewMessage(d)
}

// Receive gives the handler the request that was read before, and then what comes.
func (s *Stream) Receive(m any) error {
	if s.request == nil {
		return s.StreamingHandlerConn.Receive(m)
	}
	request := s.request
	s.request = nil
	if s.err != nil {
		return s.err
	}
	dst, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("connectmw: the handler of %s receives a %T, not a protobuf message", s.Spec().Procedure, m)
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
