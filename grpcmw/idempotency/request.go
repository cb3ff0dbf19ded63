package idempotency

import (
	"context"
	"encoding/binary"
	"fmt"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

func keyValues(ctx context.Context) []string {
	return metadata.ValueFromIncomingContext(ctx, keyMetadata)
}

// readKey returns the key of a call, or the denial of one without a proper one. It returns neither for
// a call that has none, and needs none.
func (i *interceptor) readKey(ctx context.Context, req any) (string, *policy.Denial) {
	values := keyValues(ctx)
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
			Detail: fmt.Sprintf("The metadata %s and the field %s have different keys.", keyMetadata, i.settings.KeyField),
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

// fingerprint is all that says what a call asks for.
func fingerprint(fullMethod string, req any) ([]byte, error) {
	message, ok := req.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("idempotency: the request of %s is a %T, not a protobuf message", fullMethod, req)
	}
	b := binary.AppendUvarint(nil, uint64(len(fullMethod)))
	b = append(b, fullMethod...)
	return proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, message)
}
