package renewal

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Due has a store renew those of a batch that are due, by the requests that are about them, and says
// for each of the batch whether it is held. Those that are over in this process are not asked for,
// and not held: a renewal would keep others out for nobody's sake.
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
		err = fmt.Errorf("%w: %d answers to %d renewals", store.ErrUnavailable, len(answers), len(reqs))
	}
	answers = answers[:min(len(answers), len(reqs))]
	for i, answer := range answers {
		held[index[i]] = answer
	}
	return held, err
}
