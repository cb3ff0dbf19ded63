// Login slows down attackers who guess passwords. Only failures count, of each account from each
// address, of each account, and of each address; an attacker who continues has to wait longer each
// time. Run it, open the address that it prints, and press the buttons:
//
//	go run ./examples/login
//
// login.go is the part to copy, and says what each limit is for, and what it costs; users.go
// pretends to be the list of users, and desk.go shows the attempts. With -redis, any number of
// instances share the limits.
package main

import (
	"cmp"
	"crypto/rand"
	"flag"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

func main() { program().Main() }

func program() demo.Program {
	flags := flag.NewFlagSet("login", flag.ContinueOnError)
	secret := flags.String("secret", "", "`text` that device cookies are signed with, the same for all instances; random if not set")
	return demo.Program{Flags: flags, Handler: func(st store.Store) (http.Handler, func(), error) {
		handler, err := newLogin(st, newUsers(iterations), []byte(cmp.Or(*secret, rand.Text())), usual)
		return handler, func() {}, err
	}}
}
