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
		if scope, id := d.name("checkout", Operation{Key: "k1"}); scope != "" || id == "" || id == c.id {
			t.Errorf("without a scope: the scope is %q, the operation %q", scope, id)
		}
		if scope, id := d.name("checkout", op); id != c.id || scope != c.scope {
			t.Errorf("secret %q: the operation is %q and its scope %q, want %q and %q", c.secret, id, scope, c.id, c.scope)
		}
		if got := d.fingerprint(op); got != c.fingerprint {
			t.Errorf("secret %q: the fingerprint is %q, want %q", c.secret, got, c.fingerprint)
		}
	}
}
