package console

import "net/http"

// serve finds the page, or the action, of a request.
func (q *request) serve(w http.ResponseWriter) error {
	if q.Method == http.MethodPost {
		return q.post(w)
	}
	v, err := q.page()
	if err != nil {
		return err
	}
	return q.render(w, v)
}

func (q *request) page() (view, error) {
	first := q.path.at(0)
	if q.path.len() <= 1 {
		switch first {
		case "":
			return q.now(), nil
		case "monitor":
			return q.monitor()
		case "rules":
			return q.rules()
		case "processes":
			return q.processes(), nil
		case "log":
			return q.log(), nil
		}
		if kind, ok := kinds[first]; ok {
			return q.names(kind), nil
		}
		return view{}, errNotFound
	}
	if first == "monitor" && q.path.len() == 3 {
		return q.mechanism()
	}
	kind, ok := kinds[first]
	if !ok {
		return view{}, errNotFound
	}
	name, err := q.name(1)
	if err != nil {
		return view{}, err
	}
	of := object{kind, name, q.path.at(2)}
	switch q.path.len() {
	case 2:
		return q.listing(of)
	case 3:
		return q.one(of)
	case 4:
		return q.confirmation(of, q.path.at(3))
	}
	return view{}, errNotFound
}

// post carries out an action, or looks up a key that must not stand in a URL.
func (q *request) post(w http.ResponseWriter) error {
	kind, ok := kinds[q.path.at(0)]
	if !ok || q.path.len() < 2 {
		return problem{http.StatusMethodNotAllowed, "This page takes no form."}
	}
	name, err := q.name(1)
	if err != nil {
		return err
	}
	of := object{kind, name, q.path.at(2)}
	switch q.path.len() {
	case 2:
		v, err := q.lookUp(of)
		if err != nil {
			return err
		}
		return q.render(w, v)
	case 4:
		return q.act(w, of, q.path.at(3))
	}
	return errNotFound
}

// kind is a kind of mechanism that has pages of its own.
type kind struct {
	Path, Kind    string // the first segment, and that of presence
	Title         string
	One, Thing    string // the mechanism, and the object that has a key
	Held, Waiting string // headings
}

var kinds = func() map[string]*kind {
	all := make(map[string]*kind)
	for _, k := range []kind{
		{"locks", "lock", "Locks", "locker", "lock", "Held", "Waiting"},
		{"permits", "semaphore", "Permits", "semaphore", "key", "Permits held", "Waiting"},
		{"limits", "rate_limit", "Limits", "limiter", "key", "", "Waiting"},
		{"operations", "idempotency", "Operations", "guard", "operation", "In flight", ""},
		{"tasks", "delay", "Tasks", "queue", "task", "Running", ""},
	} {
		all[k.Path] = &k
	}
	return all
}()

// object is what a page or an action is about.
type object struct {
	*kind
	name string // the mechanism's
	id   string // of a key or of an operation; or empty
}
