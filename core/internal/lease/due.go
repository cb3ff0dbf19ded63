package lease

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Due renews the holds of a batch that are due, and reports for each of the batch whether it is
// held. Holds that have ended in this process are not renewed, and reported as not held: a renewal
// would block others without a holder.
func Due[H interface{ Due() bool }, R any](
	ctx context.Context, batch []H, request func(H) R, renew func(context.Context, []R) ([]bool, error),
) ([]bool, error) {
	held := make([]bool, len(batch))
	var (
		reqs  []R
		index []int
	)
	for i, h := range batch {
		if h.Due() {
			reqs = append(reqs, request(h))
			index = append(index, i)
		}
	}
	if len(reqs) == 0 {
		return held, nil
	}
	answers, err := renew(ctx, reqs)
	if err == nil && len(answers) != len(reqs) {
		err = fmt.Errorf("%w: %d replies to %d renewals", store.ErrUnavailable, len(answers), len(reqs))
	}
	answers = answers[:min(len(answers), len(reqs))]
	for i, answer := range answers {
		held[index[i]] = answer
	}
	return held, err
}
