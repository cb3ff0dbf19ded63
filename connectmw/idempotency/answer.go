package idempotency

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"connectrpc.com/connect"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/lockkeeper/lockkeeper/connectmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/internal/middleware/encoding"
)

// answer is what a handler answered: a message, or an error with its details.
type answer struct {
	code            connect.Code // zero for a message
	header, trailer http.Header
	name            string // of the message; empty for an error
	body            []byte // of the message, or of the google.rpc.Status; nil if it cannot be kept
}

// answerOf returns the answer that connect makes of what a handler returned, without its metadata.
func answerOf(message any, err error) answer {
	if err != nil {
		text := &spb.Status{Code: int32(adapter.CodeOf(err)), Message: err.Error()} // of 17 codes
		var coded *connect.Error
		if errors.As(err, &coded) {
			text.Message = coded.Message()
			for _, d := range coded.Details() {
				text.Details = append(text.Details, &anypb.Any{TypeUrl: typePrefix + d.Type(), Value: d.Bytes()})
			}
		}
		body, _ := proto.Marshal(text)
		return answer{code: adapter.CodeOf(err), body: notNil(body)}
	}
	m, ok := message.(proto.Message)
	if !ok {
		return answer{}
	}
	body, err := proto.Marshal(m)
	if err != nil { // connect will find that too
		return answer{code: connect.CodeInternal}
	}
	return answer{name: string(m.ProtoReflect().Descriptor().FullName()), body: notNil(body)}
}

const typePrefix = "type.googleapis.com/"

// Answer returns the result of an operation that was not recorded, as the interceptor replays it:
// with what its handler would have returned, a message or an error. It is for an operator, or
// the function of guard.WithReconcile, that determines an unknown outcome, with guard.Happened. The
// result is invalid if Answer returns an error: that of a message that cannot be encoded, or is nil
// without an error.
func Answer(message proto.Message, err error) (guard.Result, error) {
	if message == nil && err == nil {
		return guard.Result{}, errors.New("idempotency: Answer: neither a message nor an error")
	}
	a := answerOf(message, err)
	data := a.encode()
	if data == nil {
		_, err := proto.Marshal(message)
		return guard.Result{}, fmt.Errorf("idempotency: Answer: %w", err)
	}
	return guard.Result{Status: int(a.code), Data: data}, nil
}

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
	code := r.Number()
	a := answer{code: connect.Code(code), header: readMetadata(&r), trailer: readMetadata(&r), name: r.Text()} // see below
	a.body = r.Left
	if r.Failed || code > uint64(connect.CodeUnauthenticated) || (a.name == "") != (code != 0) {
		return answer{}, errDamaged
	}
	return a, nil
}

// message returns the message of an answer that is no error.
func (a answer) message() (proto.Message, error) {
	found, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(a.name))
	if err != nil {
		return nil, err
	}
	message := found.New().Interface()
	return message, proto.Unmarshal(a.body, message)
}

// error returns the error of an answer that is one.
func (a answer) error() *connect.Error {
	var text spb.Status
	if err := proto.Unmarshal(a.body, &text); err != nil {
		return connect.NewError(a.code, nil)
	}
	err := connect.NewError(a.code, errors.New(text.GetMessage()))
	for _, d := range text.GetDetails() {
		if detail, failed := connect.NewErrorDetail(d); failed == nil {
			err.AddDetail(detail)
		}
	}
	return err
}

func appendMetadata(b []byte, md http.Header) []byte {
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

func readMetadata(r *encoding.Reader) http.Header {
	md := http.Header{}
	for count := r.Number(); count > 0 && !r.Failed; count-- {
		md.Add(r.Text(), r.Text())
	}
	return md
}
