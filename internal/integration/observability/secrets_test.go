package observability_test

import (
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// everything returns the text of all signals: metrics in both formats, spans with their events and
// links, and the log.
func (w *world) everything() string {
	w.t.Helper()
	var all strings.Builder
	metrics := w.collect()
	for _, data := range []any{metrics, must(w.registry.Gather())} {
		fmt.Fprintf(&all, "%+v\n", data)
		text, err := json.Marshal(data)
		if err != nil {
			w.t.Fatal(err)
		}
		all.Write(text)
	}
	for _, s := range w.spans.GetSpans() {
		// The only text of the application, documented there.
		if strings.HasSuffix(s.InstrumentationScope.Name, "core/lock") {
			s.Attributes = without(s.Attributes, "lockkeeper.lock.holder")
		}
		fmt.Fprintf(&all, "%+v\n", s)
		for _, a := range s.Attributes {
			fmt.Fprintf(&all, "%s=%s\n", a.Key, a.Value.String())
		}
		for _, e := range s.Events {
			fmt.Fprintf(&all, "%s %s\n", e.Name, attributesText(e.Attributes))
		}
		for _, l := range s.Links {
			fmt.Fprintf(&all, "%+v %s\n", l.SpanContext, attributesText(l.Attributes))
		}
	}
	for _, record := range w.log.records(w.t, "") {
		// The only place of a server's address, documented there.
		if record["cause"] != nil || record["msg"] == "lockkeeper: redis replies again" {
			for _, secret := range []string{mark, secretAddress} {
				if strings.Contains(fmt.Sprint(record), secret) {
					w.t.Errorf("%q is exported: %v", secret, record)
				}
			}
			delete(record, "address")
			delete(record, "error")
		}
		fmt.Fprintf(&all, "%v\n", record)
	}
	return all.String()
}

func attributesText(attributes []attribute.KeyValue) string {
	set := attribute.NewSet(attributes...)
	return set.Encoded(attribute.DefaultEncoder())
}

func without(attributes []attribute.KeyValue, key attribute.Key) (left []attribute.KeyValue) {
	for _, a := range attributes {
		if a.Key != key {
			left = append(left, a)
		}
	}
	return left
}

// checkSecrets searches all signals for secrets.
func (w *world) checkSecrets(t *testing.T, known *tokens, server *redistest.Server, cluster *redistest.Cluster) {
	everything := w.everything()
	for _, expected := range []string{"carts", "lockkeeper.lease.lost", "redis replies again", "lockkeeper_lock_hold_duration_seconds"} {
		if !strings.Contains(everything, expected) {
			t.Errorf("%q is not there: the search is blind", expected)
		}
	}
	forbidden := append([]string{mark, holder, secretAddress, "127.0.0.1"}, known.all...)
	for _, addr := range append(cluster.Addrs(), server.Addr()) {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		forbidden = append(forbidden, ":"+port)
	}
	if len(known.all) < 50 {
		t.Errorf("only %d tokens are known", len(known.all))
	}
	for _, secret := range forbidden {
		// A port may be the beginning of a longer number, such as a hash.
		if at := regexp.MustCompile(regexp.QuoteMeta(secret) + `(?:\D|$)`).FindStringIndex(everything); at != nil {
			t.Errorf("%q is exported: …%s…", secret, everything[max(0, at[0]-200):min(len(everything), at[0]+100)])
		}
	}
}
