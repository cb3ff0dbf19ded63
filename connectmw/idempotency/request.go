package idempotency

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// readKey returns the key of a call, or the denial of one without a proper one. It returns neither
// for a call that has none, and needs none.
func (i *interceptor) readKey(call *connectmw.Call, req any) (string, *policy.Denial) {
	if i.key != nil {
		key, err := i.key(call)
		return i.decider.OwnKey(call.Context(), key, err, i.settings.Required)
	}
	values := call.Header().Values(keyHeader)
	id := stringField(req, i.settings.KeyField)
	if id == "" {
		return middleware.IdempotencyKey(values, i.settings.Required)
	}
	key, denial := middleware.CheckIdempotencyKey(id)
	if denial != nil {
		denial.Detail = fmt.Sprintf("The field %s is not 1 to 255 printable ASCII characters.", i.settings.KeyField)
		return "", denial
	}
	switch sent, denial := middleware.IdempotencyKey(values, false); {
	case denial != nil:
		return "", denial
	case sent != "" && sent != key:
		return "", &policy.Denial{
			Reason: policy.KeyMalformed,
			Detail: fmt.Sprintf("The header field %s and the field %s have different keys.", keyHeader, i.settings.KeyField),
		}
	}
	return key, nil
}

// stringField returns a field of a request, or nothing.
func stringField(req any, name string) string {
	message, ok := req.(proto.Message)
	if !ok || name == "" {
		return ""
	}
	m := message.ProtoReflect()
	field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if field == nil || field.Kind() != protoreflect.StringKind || field.IsList() {
		return ""
	}
	return m.Get(field).String()
}

// fingerprint returns all that says what a call asks for, or the denial of one that has none.
func (i *interceptor) fingerprint(call *connectmw.Call, req any) ([]byte, *policy.Denial) {
	b := binary.AppendUvarint(nil, uint64(len(call.Spec().Procedure)))
	b = append(b, call.Spec().Procedure...)
	switch {
	case i.settings.KeyAlone:
		return b, nil
	case i.own != nil:
		own, err := i.own(call)
		if err != nil {
			return nil, &policy.Denial{Reason: policy.BodyUnreadable, Err: err}
		}
		return append(b, own...), nil
	}
	message, ok := req.(proto.Message)
	if !ok {
		err := fmt.Errorf("idempotency: the request of %s is a %T, not a protobuf message", call.Spec().Procedure, req)
		return nil, &policy.Denial{Reason: policy.InternalError, Err: err}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, message)
	if err != nil {
		return nil, &policy.Denial{Reason: policy.InternalError, Err: err}
	}
	return b, nil
}
