package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A trial that does not end as it should is judged, unless its control was late.
func TestSpoiledTrials(t *testing.T) {
	errTrial := errors.New("a trial failed")
	type end struct {
		verdict verdict
		late    time.Duration
		err     error
	}
	for name, c := range map[string]struct {
		ends    []end
		verdict verdict
		err     bool
	}{
		"holds":                  {[]end{{sound, 0, nil}}, sound, false},
		"holds, though late":     {[]end{{fenced, tooLate, nil}}, fenced, false},
		"fails in time":          {[]end{{broken, tooLate - 1, nil}}, broken, false},
		"an error in time":       {[]end{{"", 0, errTrial}}, "", true},
		"fails late, then holds": {[]end{{broken, tooLate, nil}, {sound, 0, nil}}, sound, false},
		"fails late, then again": {[]end{{costly, tooLate, nil}, {broken, 0, nil}}, broken, false},
		"always late": {
			[]end{{"", tooLate, errTrial}, {broken, tooLate, nil}, {broken, tooLate, nil}}, broken, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPace(&server{}, 1)
				var ttls []time.Duration
				var prefixes []string
				play := func(ctx context.Context, s *stage) (finding, error) {
					if err := s.begin(ctx); err != nil {
						return finding{}, err
					}
					end := c.ends[len(ttls)]
					s.control.late.Store(int64(end.late))
					ttls, prefixes = append(ttls, s.ttl), append(prefixes, s.prefix)
					return finding{end.verdict, ""}, end.err
				}
				found, err := p.play(t.Context(), "test", time.Second, play, verdict.holds)
				if found.verdict != c.verdict || (err != nil) != c.err {
					t.Errorf("%v, %v", found, err)
				}
				want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}[:len(c.ends)]
				if !slices.Equal(ttls, want) || len(slices.Compact(prefixes)) != len(want) {
					t.Errorf("played with %v, %v", ttls, prefixes)
				}
			})
		})
	}
}
