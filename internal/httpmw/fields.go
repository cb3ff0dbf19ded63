package httpmw

import (
	"cmp"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// change is a handler's change to a header field. A field without values is not a deleted field: it
// prevents net/http from adding its own Content-Type or Date.
type change struct {
	name    string
	values  []string
	deleted bool
}

// changes returns the changes that turn one header into another, ordered by name.
func changes(before, after http.Header) []change {
	var list []change
	for name, values := range after {
		if old, ok := before[name]; !ok || !slices.Equal(old, values) {
			list = append(list, change{name: name, values: slices.Clone(values)})
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			list = append(list, change{name: name, deleted: true})
		}
	}
	slices.SortFunc(list, func(a, b change) int { return cmp.Compare(a.name, b.name) })
	return list
}

// apply makes changes to a header.
func apply(h http.Header, list []change) {
	for _, c := range list {
		if c.deleted {
			delete(h, c.name)
		} else {
			h[c.name] = c.values
		}
	}
}

// trailers returns the trailers among the changes that were made after the header was settled. All
// other changes came too late.
func trailers(header http.Header, late []change) []change {
	announced := listed(header["Trailer"])
	return slices.DeleteFunc(late, func(c change) bool {
		return !announced[c.name] && !strings.HasPrefix(c.name, http.TrailerPrefix)
	})
}

// unrecorded fields belong to one transmission, one connection or one client, never to a replay.
var unrecorded = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Proxy-Connection": true, "Te": true, "Transfer-Encoding": true, "Upgrade": true,
	"Set-Cookie": true, "Set-Cookie2": true, "Date": true, "Server": true,
	"Server-Timing": true, "Alt-Svc": true, "Ratelimit": true, "Ratelimit-Policy": true,
	"X-Ratelimit-Limit": true, "X-Ratelimit-Remaining": true, "X-Ratelimit-Reset": true,
	replayedHeader: true, statusHeader: true, markHeader: true,
}

// needed fields can change the meaning of an answer if they are missing.
var needed = map[string]bool{
	"Content-Type": true, "Content-Encoding": true, "Content-Length": true, "Location": true, "Trailer": true,
}

// fields selects the recorded fields.
type fields struct {
	keep map[string]bool // beside the needed ones; nil for all
	drop map[string]bool
}

// fieldsOf returns the selection of policy.KeepHeaders and policy.DropHeaders. It panics if a field
// to keep is never recorded.
func fieldsOf(s *setting.Settings) fields {
	for name := range s.KeepFields {
		if unrecorded[name] {
			panic(fmt.Sprintf("idempotency: New: policy.KeepHeaders: %s is never kept", name))
		}
	}
	return fields{s.KeepFields, s.DropFields}
}

func (f fields) records(name string) bool {
	if f.keep == nil && f.drop == nil {
		return true
	}
	name = http.CanonicalHeaderKey(name)
	return !f.drop[name] && (f.keep == nil || f.keep[name] || needed[name])
}

// lasting returns the changes that a replay repeats. For every field it includes its deletion, or
// its lack of a value.
func (f fields) lasting(list []change) []change {
	var ofConnection map[string]bool
	if i := slices.IndexFunc(list, func(c change) bool { return c.name == "Connection" }); i >= 0 {
		ofConnection = listed(list[i].values)
	}
	kept := make([]change, 0, len(list))
	for _, c := range list {
		name := strings.TrimPrefix(c.name, http.TrailerPrefix)
		if len(c.values) == 0 || !unrecorded[name] && !ofConnection[name] && f.records(name) {
			kept = append(kept, c)
		}
	}
	return kept
}

// listed returns the names of header fields in the values of a field that lists them.
func listed(values []string) map[string]bool {
	if len(values) == 0 {
		return nil
	}
	names := make(map[string]bool)
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			names[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	return names
}
