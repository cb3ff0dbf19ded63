package middleware

import (
	"sync/atomic"
	"testing"
)

// Requests whose hashes share their places are distinguished, as long as there are some.
func TestVisitsShareTheirPlaces(t *testing.T) {
	var places [8]atomic.Uint64
	var visits []Visit
	for id := range uint64(len(places)) {
		v, again := visit(&places, 1+id)
		if again || v.place == nil {
			t.Fatalf("visit %d: %+v, again: %v", id, v, again)
		}
		visits = append(visits, v)
	}
	for id := range uint64(len(places)) {
		if _, again := visit(&places, 1+id); !again {
			t.Errorf("visit %d is not found", id)
		}
	}
	if v, again := visit(&places, 9); again || v.place != nil {
		t.Errorf("one too many: %+v, again: %v", v, again)
	}
	for _, v := range visits {
		v.End()
	}
	if v, again := visit(&places, 1); again || v.place == nil {
		t.Errorf("after their ends: %+v, again: %v", v, again)
	}
}
