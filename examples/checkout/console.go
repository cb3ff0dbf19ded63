package main

import (
	"crypto/subtle"
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// operators admits the holder of the token, which was printed at the start, as the password of HTTP
// Basic authentication. The user name is the operator's, for the log of actions.
type operators struct{ token string }

var errNoOperator = errors.New("not the operator's token")

// authorize is for console.Authorize.
func (o operators) authorize(r *http.Request) (console.Operator, error) {
	name, password, ok := r.BasicAuth()
	if !ok || subtle.ConstantTimeCompare([]byte(password), []byte(o.token)) != 1 {
		return console.Operator{}, errNoOperator
	}
	return console.Operator{Name: name, May: console.Act}, nil
}

// authenticate is middleware, which has browsers request the password.
func (o operators) authenticate(c *gin.Context) {
	if _, err := o.authorize(c.Request); err != nil {
		c.Header("WWW-Authenticate", `Basic realm="console"`)
		problem(c, http.StatusUnauthorized, "The password is the token that the shop has printed.")
	}
}
