package lease_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
)

type maybeDue int // even ones are

func (d maybeDue) Due() bool { return d%2 == 0 }

func TestOnlyDueLeasesAreRenewed(t *testing.T) {
	errDown := errors.New("down")
	for name, c := range map[string]struct {
		batch   []maybeDue
		replies []bool
		err     error
		held    []bool
		wantErr error
	}{
		"some":            {[]maybeDue{1, 2, 3, 4}, []bool{true, false}, nil, []bool{false, true, false, false}, nil},
		"none":            {[]maybeDue{1, 3}, nil, nil, []bool{false, false}, nil},
		"some renewed":    {[]maybeDue{1, 2, 4}, []bool{false, true}, errDown, []bool{false, false, true}, errDown},
		"a missing reply": {[]maybeDue{2, 4}, []bool{true}, nil, []bool{true, false}, store.ErrUnavailable},
		"one too many":    {[]maybeDue{1, 2}, []bool{true, true}, nil, []bool{false, true}, store.ErrUnavailable},
		"no replies":      {[]maybeDue{2, 4}, nil, errDown, []bool{false, false}, errDown},
	} {
		t.Run(name, func(t *testing.T) {
			held, err := lease.Due(t.Context(), c.batch, func(d maybeDue) int { return int(d) },
				func(_ context.Context, reqs []int) ([]bool, error) {
					for _, req := range reqs {
						if req%2 != 0 {
							t.Errorf("%d was renewed", req)
						}
					}
					if len(reqs) == 0 {
						t.Error("an empty batch was sent")
					}
					return c.replies, c.err
				})
			if !slices.Equal(held, c.held) || !errors.Is(err, c.wantErr) {
				t.Errorf("%v, %v; want %v, %v", held, err, c.held, c.wantErr)
			}
		})
	}
}
