package main

import (
	"context"
	"log"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// budgets are how many failures there may be.
type budgets struct {
	// pair is of an account from an address. It stops who guesses the password of an account. Only
	// that address has to wait: the owner of the account, elsewhere, does not notice.
	pair tokenbucket.Limit
	// account is of an account from all addresses. It stops who guesses from many, and it has a
	// price: who uses it up locks the owner out. So it is five times that of a pair: no single
	// address can use it up. And a browser in which the owner has logged in before has a budget of
	// its own (device.go), which strangers cannot touch.
	account tokenbucket.Limit
	// address is of an address with all accounts. It stops who tries one password with many of
	// them. An office has one address, and many people who mistype theirs; who uses it up locks
	// them out, too.
	address tokenbucket.Limit
}

var usual = budgets{
	pair:    tokenbucket.PerHour(10),
	account: tokenbucket.PerHour(50),
	address: tokenbucket.PerHour(100),
}

// held is how long an account is closed to an address that has used up its budget and tries again:
// longer each time, since ten tries an hour are 87,600 a year.
var held = tokenbucket.Escalate(time.Minute, 2, 24*time.Hour)

// clients are found behind a proxy on this machine, so that the page can pretend to be several of
// them. Yours are clientip.Direct(), or behind the proxies that you name.
var clients = clientip.TrustedProxies(netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))

// newLogin wires the login.
func newLogin(st store.Store, users *users, secret []byte, b budgets) (http.Handler, error) {
	pairs, err := tokenbucket.New(st, "login-pair", b.pair)
	if err != nil {
		return nil, err
	}
	accounts, err := tokenbucket.New(st, "login-account", b.account)
	if err != nil {
		return nil, err
	}
	addresses, err := tokenbucket.New(st, "login-address", b.address)
	if err != nil {
		return nil, err
	}
	devices := devices{secret: secret}
	l := &login{users: users, devices: devices}

	// A try is reserved before the password is looked at, or else a hundred at once would all be
	// looked at; it is given back unless it fails. The limit of the pair comes first: what it
	// refuses does not reserve anything of the account, nor of the address. The eleventh try at once
	// is refused even if all of them are right, for about as long as the others take; it holds the
	// pair only if they are all wrong.
	byAddress, byAccount := nethttp.ByClientIP(clients), nethttp.ByContext(accountKey{})
	byPair, byOwner := nethttp.Join(byAccount, byAddress), devices.keyOr(byAccount)
	failures := policy.ChargeStatus(http.StatusUnauthorized)
	report := nethttp.OnError(func(r *http.Request, err error) { log.Println(r.Method, r.URL.Path, err) })
	// No answer says how many tries are left: that helps a guesser.
	hidden := policy.HideLimits()
	limitPair := ratelimit.New(pairs, byPair, failures, hidden, report, policy.Hold(held))
	limitAccount := ratelimit.New(accounts, byOwner, failures, hidden, report)
	limitAddress := ratelimit.New(addresses, byAddress, failures, hidden, report)

	// Against floods this is not enough: put a limit by address round all routes, and permits round the
	// hash, as examples/checkout does round its report.
	mux := http.NewServeMux()
	mux.Handle("POST /login", decode(limitPair(limitAccount(limitAddress(l)))))
	// The rest is for the page: leave it out, since it shows the budgets to anybody, and fills them.
	desk := &desk{devices: devices, budgets: []counted{
		{"pair", pairs, byPair}, {"account", accounts, byOwner}, {"address", addresses, byAddress},
	}}
	if err := desk.show(mux); err != nil {
		return nil, err
	}
	return http.NewCrossOriginProtection().Handler(mux), nil
}

type (
	accountKey  struct{}
	passwordKey struct{}
)

// decode reads the form. All spellings of an account are one, or else each would have its own
// budget.
func decode(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
		account, password := strings.ToLower(strings.TrimSpace(r.PostFormValue("account"))), r.PostFormValue("password")
		if account == "" || password == "" || len(account) > 64 {
			http.Error(w, "an account and a password are needed", http.StatusBadRequest)
			return
		}
		ctx := context.WithValue(r.Context(), accountKey{}, account)
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, passwordKey{}, password)))
	})
}

type login struct {
	users   *users
	devices devices
}

// ServeHTTP looks at the password. It answers 401 alike for an account that does not exist.
func (l *login) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	account, password := r.Context().Value(accountKey{}).(string), r.Context().Value(passwordKey{}).(string)
	if !l.users.check(account, password) {
		http.Error(w, "the account or the password is wrong", http.StatusUnauthorized)
		return
	}
	l.devices.remember(w, r, account)
	w.WriteHeader(http.StatusNoContent) // yours begins a session here
}
