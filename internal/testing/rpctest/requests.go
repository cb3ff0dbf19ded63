package rpctest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

func fingerprintOption(t *rig) {
	var s Service
	client := guarded(t, &s, t.Fingerprint(func(call Call) ([]byte, error) {
		request, err := call.Request()
		if err != nil {
			return nil, err
		}
		amount := request.Amount
		if amount < 0 {
			return nil, errors.New("negative")
		}
		return fmt.Append(nil, t.Incoming(call.Context(), "x-tenant"), amount), nil
	}))
	tenant := func(name string) context.Context {
		return t.Sending(keyed(t, "k"), "x-tenant", name)
	}
	for _, id := range []string{"1", "2"} {
		thing, err := client.Make(tenant("a"), &Request{ID: id, Amount: 5})
		is(t, thing, err, "run 1")
	}
	_, err := client.Make(tenant("a"), &Request{Amount: 6})
	denies(t, err, policy.KeyReused)
	_, err = client.Make(tenant("b"), &Request{Amount: 5})
	denies(t, err, policy.KeyReused)
	_, err = client.Make(tenant("a"), &Request{Amount: -1})
	denies(t, err, policy.BodyUnreadable)
	s.ran(t, 1)
}

func keyAlone(t *rig) {
	var s Service
	client := guarded(t, &s, policy.KeyAlone())
	for _, id := range []string{"1", "2"} {
		thing, err := client.Make(keyed(t, "k"), &Request{ID: id})
		is(t, thing, err, "run 1")
	}
	s.ran(t, 1)
}

func keyFrom(t *rig) {
	var s Service
	client := guarded(t, &s, t.KeyFrom(t.ByField("id")))
	for n, r := range []*Request{{ID: "e"}, {ID: "e"}, {ID: "f", RequestID: "k"}, {RequestID: "k"}, {RequestID: "k"}} {
		thing, err := client.Make(keyed(t, "k"), r) // whose key is ignored
		is(t, thing, err, "run "+[]string{"1", "1", "2", "3", "4"}[n])
	}
	_, err := client.Make(keyed(t, "k"), &Request{ID: strings.Repeat("e", 256)})
	denies(t, err, policy.KeyMalformed)

	client = guarded(t, &s, t.KeyFrom(t.ByField("id")), policy.Required())
	_, err = client.Make(keyed(t, "k"), &Request{})
	denies(t, err, policy.KeyMissing)
	client = guarded(t, &s, t.KeyFrom(t.KeyOf(func(Call) (string, error) { return "", errors.New("no directory") })))
	_, err = client.Make(keyed(t, "k"), &Request{})
	denies(t, err, policy.InternalError)
	s.ran(t, 4)
}
