package connectmw_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/core/policy"
)

func TestFingerprintOption(t *testing.T) {
	var s service
	client := guarded(t, &s, idempotency.Fingerprint(func(call *connectmw.Call) ([]byte, error) {
		request, err := call.Request()
		if err != nil {
			return nil, err
		}
		amount := request.(*things.MakeRequest).GetAmount()
		if amount < 0 {
			return nil, errors.New("negative")
		}
		return fmt.Append(nil, incoming(call.Context(), "x-tenant"), amount), nil
	}))
	tenant := func(name string) context.Context {
		return sending(keyed(t, "k"), "x-tenant", name)
	}
	for _, id := range []string{"1", "2"} {
		thing, err := client.Make(tenant("a"), &things.MakeRequest{Id: id, Amount: 5})
		is(t, thing, err, "run 1")
	}
	_, err := client.Make(tenant("a"), &things.MakeRequest{Amount: 6})
	denies(t, err, policy.KeyReused)
	_, err = client.Make(tenant("b"), &things.MakeRequest{Amount: 5})
	denies(t, err, policy.KeyReused)
	_, err = client.Make(tenant("a"), &things.MakeRequest{Amount: -1})
	denies(t, err, policy.BodyUnreadable)
	s.ran(t, 1)
}

func TestKeyAlone(t *testing.T) {
	var s service
	client := guarded(t, &s, policy.KeyAlone())
	for _, id := range []string{"1", "2"} {
		thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{Id: id})
		is(t, thing, err, "run 1")
	}
	s.ran(t, 1)
}

func TestKeyFrom(t *testing.T) {
	var s service
	client := guarded(t, &s, idempotency.KeyFrom(connectmw.ByField("id")))
	for n, r := range []*things.MakeRequest{{Id: "e"}, {Id: "e"}, {Id: "f", RequestId: "k"}, {RequestId: "k"}, {RequestId: "k"}} {
		thing, err := client.Make(keyed(t, "k"), r) // whose key is ignored
		is(t, thing, err, "run "+[]string{"1", "1", "2", "3", "4"}[n])
	}
	_, err := client.Make(keyed(t, "k"), &things.MakeRequest{Id: strings.Repeat("e", 256)})
	denies(t, err, policy.KeyMalformed)

	client = guarded(t, &s, idempotency.KeyFrom(connectmw.ByField("id")), policy.Required())
	_, err = client.Make(keyed(t, "k"), &things.MakeRequest{})
	denies(t, err, policy.KeyMissing)
	client = guarded(t, &s, idempotency.KeyFrom(func(*connectmw.Call) (string, error) { return "", errors.New("no directory") }))
	_, err = client.Make(keyed(t, "k"), &things.MakeRequest{})
	denies(t, err, policy.InternalError)
	s.ran(t, 4)
}
