package adapter

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
)

// describe returns the descriptor of a method, such as /shop.Shop/Checkout; nil if no generated
// code of this program has it.
func describe(fullMethod string) protoreflect.MethodDescriptor {
	name := strings.ReplaceAll(strings.TrimPrefix(fullMethod, "/"), "/", ".")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	method, _ := found.(protoreflect.MethodDescriptor)
	return method
}

// HasNoSideEffects reports whether a method is declared with option idempotency_level =
// NO_SIDE_EFFECTS.
func HasNoSideEffects(fullMethod string) bool {
	method := describe(fullMethod)
	if method == nil {
		return false
	}
	options, ok := method.Options().(*descriptorpb.MethodOptions)
	return ok && options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

// newRequest returns an empty request of a method.
func newRequest(fullMethod string) (proto.Message, error) {
	method := describe(fullMethod)
	if method == nil {
		return nil, keys.NotProvided("grpcmw: %s is in no generated code of this program, so its request cannot be read", fullMethod)
	}
	request, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return nil, fmt.Errorf("grpcmw: the request of %s: %w", fullMethod, err)
	}
	return request.New().Interface(), nil
}
