package httpmw

import (
	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Fenced is fenced.New.
func Fenced[C any](a Adapter[C], checker fence.Checker, key func(C) (string, error), opts []policy.FencedOption) Middleware[C] {
	settings := setting.Of(opts)
	m := middleware.NewFence(checker, settings)
	if key == nil {
		panic("fenced: New: nil key")
	}
	b := newBase(a, "fenced", settings)
	return b.lending(func(c C, next func(C) error) error {
		if b.skips(c) {
			return next(c)
		}
		x := newExchange(b, c, next)
		values := x.request.Header[fence.Header]
		passage, denial := m.Check(x.request.Context(), values, func() (string, error) { return b.keyOf(c, key) })
		if denial != nil {
			return b.refuse(c, *denial)
		}
		if passage.Bypassed != nil {
			x.Report(passage.Bypassed)
			b.Header(c).Set("Fence-Status", "bypassed")
		}
		x.handle(x.request.WithContext(passage.Context))
		return x.err
	})
}
