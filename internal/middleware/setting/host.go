package setting

import "strings"

// Host returns the common spelling of a request's host: in lower case, without the default port of
// HTTP or HTTPS, and without the dot at its end.
func Host(host string) string {
	host = strings.ToLower(host)
	if name, port, ok := strings.Cut(host, "]"); ok { // an IPv6 address
		if port == ":80" || port == ":443" {
			return name + "]"
		}
		return host
	}
	name, port, _ := strings.Cut(host, ":")
	name = strings.TrimSuffix(name, ".")
	if port == "" || port == "80" || port == "443" {
		return name
	}
	return name + ":" + port
}
