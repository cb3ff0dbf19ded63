package idempotency

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/internal/middleware/encoding"
)

// answer is what a handler answered: a message, or a status with its details.
type answer struct {
	code            codes.Code
	header, trailer metadata.MD
	name            string // of the message; empty for a status
	body            []byte // of the message, or of the google.rpc.Status; nil if it cannot be kept
}

// answerOf returns the answer that gRPC makes of what a handler returned.
func answerOf(resp any, err error) answer {
	if err != nil {
		st, ok := status.FromError(err)
		if !ok {
			st = status.FromContextError(err)
		}
		code, text := st.Code(), st.Proto()
		if !isError(code) {
			code, text.Code = codes.Unknown, int32(codes.Unknown)
		}
		body, _ := proto.Marshal(text)
		return answer{code: code, body: notNil(body)}
	}
	message, ok := resp.(proto.Message)
	if !ok {
		return answer{}
	}
	body, err := proto.Marshal(message)
	if err != nil { // gRPC will find that too
		return answer{code: codes.Internal}
	}
	return answer{name: string(message.ProtoReflect().Descriptor().FullName()), body: notNil(body)}
}

// Answer returns the result of an operation that was not recorded, as the interceptor replays it:
// with what its handler would have returned, a message or an error. It is for an operator, or
// the function of guard.WithReconcile, that determines an unknown outcome, with guard.Happened. The
// result is invalid if Answer returns an error: that of a message that cannot be encoded, or is nil
// without an error.
func Answer(resp proto.Message, err error) (guard.Result, error) {
	if resp == nil && err == nil {
		return guard.Result{}, errors.New("idempotency: Answer: neither a message nor an error")
	}
	a := answerOf(resp, err)
	data := a.encode()
	if data == nil {
		_, err := proto.Marshal(resp)
		return guard.Result{}, fmt.Errorf("idempotency: Answer: %w", err)
	}
	return guard.Result{Status: int(a.code), Data: data}, nil
}

// isError reports whether a code is one that gRPC knows for an error. Clients make of another what
// they will.
func isError(code codes.Code) bool { return code != codes.OK && code <= codes.Unauthenticated }

// notNil distinguishes an empty message from none.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// The encoding of an answer: a version, the code, header and trailer, the message's name, and the
// body. Metadata is the number of its values, then the name and the text of each.
const answerVersion = 1

var errDamaged = errors.New("idempotency: the kept answer is damaged")

// encode returns nil for an answer that cannot be kept.
func (a answer) encode() []byte {
	if a.body == nil {
		return nil
	}
	b := []byte{answerVersion}
	b = binary.AppendUvarint(b, uint64(a.code))
	b = appendMetadata(b, a.header)
	b = appendMetadata(b, a.trailer)
	b = encoding.AppendText(b, a.name)
	return append(b, a.body...)
}

func decodeAnswer(b []byte) (answer, error) {
	r := encoding.Reader{Left: b}
	if version := r.Number(); version != answerVersion {
		return answer{}, errDamaged
	}
	a := answer{code: codes.Code(r.Number()), header: readMetadata(&r), trailer: readMetadata(&r), name: r.Text()}
	a.body = r.Left
	if r.Failed || a.code > codes.Unauthenticated || (a.name == "") != (a.code != codes.OK) {
		return answer{}, errDamaged
	}
	return a, nil
}

// message returns the message of an answer, nil for a status.
func (a answer) message() (any, error) {
	if a.code != codes.OK {
		return nil, nil //nolint:nilnil // gRPC has a nil message beside an error
	}
	found, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(a.name))
	if err != nil {
		return nil, err
	}
	message := found.New().Interface()
	return message, proto.Unmarshal(a.body, message)
}

// error returns the status of an answer, nil for a message.
func (a answer) error() error {
	if a.code == codes.OK {
		return nil
	}
	var st spb.Status
	if err := proto.Unmarshal(a.body, &st); err != nil || codes.Code(st.GetCode()) != a.code {
		return status.Error(a.code, "")
	}
	return status.ErrorProto(&st)
}

func appendMetadata(b []byte, md metadata.MD) []byte {
	names, count := make([]string, 0, len(md)), 0
	for name, values := range md {
		names = append(names, name)
		count += len(values)
	}
	slices.Sort(names)
	b = binary.AppendUvarint(b, uint64(count))
	for _, name := range names {
		for _, value := range md[name] {
			b = encoding.AppendText(encoding.AppendText(b, name), value)
		}
	}
	return b
}

func readMetadata(r *encoding.Reader) metadata.MD {
	md := metadata.MD{}
	for count := r.Number(); count > 0 && !r.Failed; count-- {
		name := strings.ToLower(r.Text())
		md[name] = append(md[name], r.Text())
	}
	return md
}
