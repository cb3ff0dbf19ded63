package idempotency

import (
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestAnswerRoundTrip(t *testing.T) {
	for _, md := range []metadata.MD{{}, {"a": {"b"}, "multi": {"a, b", "", "c"}, "x-bin": {"\x00\xff"}}} {
		for _, message := range []proto.Message{&emptypb.Empty{}, wrapperspb.String("text"), wrapperspb.Bytes(make([]byte, 1000))} {
			a := answerOf(message, nil)
			a.header, a.trailer = md, metadata.MD{"t": {"1"}}
			got, err := decodeAnswer(a.encode())
			if err != nil || !reflect.DeepEqual(got, a) {
				t.Fatalf("%+v, %v; want %+v", got, err, a)
			}
			if m, err := got.message(); err != nil || !proto.Equal(m.(proto.Message), message) || got.error() != nil {
				t.Errorf("%v, %v; want %v", m, err, message)
			}
		}
	}
	a := answerOf(nil, status.Error(codes.NotFound, "no such thing"))
	a.header, a.trailer = metadata.MD{}, metadata.MD{}
	got, err := decodeAnswer(a.encode())
	if err != nil || status.Code(got.error()) != codes.NotFound || status.Convert(got.error()).Message() != "no such thing" {
		t.Errorf("%+v, %v", got, err)
	}
	if m, err := got.message(); m != nil || err != nil {
		t.Errorf("the message of a status: %v, %v", m, err)
	}
}

func TestAnswersOfOperators(t *testing.T) {
	r, err := Answer(wrapperspb.String("text"), nil)
	if err != nil || r.Status != int(codes.OK) {
		t.Fatalf("%+v, %v", r, err)
	}
	a, err := decodeAnswer(r.Data)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := a.message(); err != nil || !proto.Equal(m.(proto.Message), wrapperspb.String("text")) {
		t.Errorf("%v, %v", m, err)
	}
	r, err = Answer(nil, status.Error(codes.NotFound, "no such thing"))
	if err != nil || r.Status != int(codes.NotFound) {
		t.Fatalf("%+v, %v", r, err)
	}
	if a, err = decodeAnswer(r.Data); err != nil || status.Convert(a.error()).Message() != "no such thing" {
		t.Errorf("%v, %v", a.error(), err)
	}
	for name, m := range map[string]proto.Message{"nothing": nil, "invalid text": wrapperspb.String("\xff")} {
		if r, err := Answer(m, nil); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestAnswersThatCannotBeKept(t *testing.T) {
	for name, resp := range map[string]any{"no message": "text", "invalid text": wrapperspb.String("\xff")} {
		if a := answerOf(resp, nil); a.encode() != nil {
			t.Errorf("%s is kept as %+v", name, a)
		}
	}
}

func TestUnknownMessage(t *testing.T) {
	a := answerOf(wrapperspb.String("text"), nil)
	a.name = "shop.Gone"
	got, err := decodeAnswer(a.encode())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := got.message(); err == nil {
		t.Errorf("it is %v", m)
	}
}

func FuzzDecodeAnswer(f *testing.F) {
	a := answerOf(wrapperspb.String("text"), nil)
	a.header = metadata.MD{"a": {"b", "c"}}
	f.Add(a.encode())
	f.Add(answerOf(nil, status.Error(codes.Aborted, "x")).encode())
	f.Add([]byte{})
	f.Add([]byte{answerVersion})
	f.Add([]byte{2, 0, 0, 0, 0})
	f.Add([]byte(strings.Repeat("\xff", 40)))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAnswer(b)
		if err != nil {
			return
		}
		_, _ = a.message()
		if (a.error() == nil) != (a.code == codes.OK) {
			t.Errorf("%v has the error %v", a.code, a.error())
		}
		again, err := decodeAnswer(a.encode())
		if err != nil || !reflect.DeepEqual(again, a) {
			t.Errorf("%+v became %+v, %v", a, again, err)
		}
	})
}
