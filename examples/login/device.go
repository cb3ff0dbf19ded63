package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/nethttp"
)

// devices knows browsers in which the owner of an account has logged in: they have a cookie that
// says so. It is no session, and a thief of it still needs the password.
type devices struct{ secret []byte }

// deviceCookie is the cookie's name.
const deviceCookie = "device"

// sign returns the value of the cookie of a device: its name, and a signature for this account.
func (d devices) sign(device, account string) string {
	mac := hmac.New(sha256.New, d.secret)
	_, _ = mac.Write([]byte(device + "\x00" + account)) // never fails; neither has a zero byte
	return device + "." + hex.EncodeToString(mac.Sum(nil))
}

// remember gives the client the cookie of a new device, unless it has one. The new name makes a
// budget of its own, which only who knows the password can get.
func (d devices) remember(w http.ResponseWriter, r *http.Request, account string) {
	if d.of(r, account) != "" {
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: deviceCookie, Value: d.sign(rand.Text(), account), Path: "/",
		HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: int((90 * 24 * time.Hour).Seconds()),
		Secure: r.TLS != nil, // yours is always true
	})
}

// of returns the name of the device if the owner of the account has logged in on it, or nothing.
func (d devices) of(r *http.Request, account string) string {
	cookie, err := r.Cookie(deviceCookie)
	if err != nil {
		return ""
	}
	device, _, _ := strings.Cut(cookie.Value, ".")
	if !hmac.Equal([]byte(cookie.Value), []byte(d.sign(device, account))) {
		return ""
	}
	return device
}

// keyOr keys by the account and the device, if the owner of the account has logged in on it, and by
// the account otherwise. So the owner is not locked out where the account is.
func (d devices) keyOr(byAccount nethttp.KeyFunc) nethttp.KeyFunc {
	byDevice := nethttp.Join(byAccount, func(r *http.Request) (string, error) {
		account, err := byAccount(r)
		if err != nil {
			return "", err
		}
		return d.of(r, account), nil // an empty key is none
	})
	return nethttp.FirstOf(byDevice, byAccount)
}
