package guard

import "testing"

// The names of records do not change with an update; otherwise completed operations would run again.
func TestNamesOfOperationsAreStable(t *testing.T) {
	op := Operation{Scope: "alice", Key: "k1", Fingerprint: []byte("what is asked for")}
	for _, c := range []struct{ secret, scope, id, fingerprint string }{
		{"", "K3eBU5-c4EB2r0CIgSCnHg", "chNKH-13ypPaDuo2apnc8Q", "SoVR6-besNplGeD-GDQbUTt0PLnIu92eCM5Hn0q8Zog"},
		{"a secret of thirty-two bytes ....", "qFl6p4VGGdyYyXOGUCVxtw", "W2nibuRo5fROSsDOkUs2Zw", "74Is8zRj4Ifg-0eUik1mW-IF_yctfoZg2b6yJ3Z5_38"},
	} {
		d := digester{[]byte(c.secret)}
		if got := d.scope("checkout", Operation{Key: "k1"}); got != "" {
			t.Errorf("no scope is %q", got)
		}
		if got := d.id("checkout", op); got != c.id {
			t.Errorf("secret %q: the operation is %q, want %q", c.secret, got, c.id)
		}
		if got := d.scope("checkout", op); got != c.scope {
			t.Errorf("secret %q: the scope is %q, want %q", c.secret, got, c.scope)
		}
		if got := d.fingerprint(op); got != c.fingerprint {
			t.Errorf("secret %q: the fingerprint is %q, want %q", c.secret, got, c.fingerprint)
		}
	}
}
