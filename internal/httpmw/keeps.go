package httpmw

import (
	"net/http"
	"slices"

	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// ending returns whether a repeat gets the answer to a request with this method. The table is in
// docs/idempotency.md.
func (m *idempotency[C]) ending(method string, status int) middleware.Ending {
	if keep, ok := m.settings.Keep[status]; ok {
		if keep {
			return middleware.Final
		}
		return middleware.Refused
	}
	switch status {
	case http.StatusNotModified, http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusPreconditionFailed,
		http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return middleware.Refused
	case http.StatusPartialContent:
		if safe(method) {
			return middleware.Refused
		}
		return middleware.Failed
	case http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict, http.StatusLocked, http.StatusFailedDependency:
		return middleware.Failed
	}
	if status >= http.StatusInternalServerError {
		return middleware.Failed
	}
	return middleware.Final
}

// safe reports whether a method is defined to have no effects.
func safe(method string) bool {
	return slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace}, method)
}

// partial reports whether an answer has only a range of the content. It is kept only by
// policy.KeepStatus.
func partial(o middleware.Outcome) bool {
	return o.Status == http.StatusPartialContent && o.Ending != middleware.Final
}
