package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/operate"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// deed is a kind of action, as the last segment of a path has it.
type deed struct {
	kind operate.Kind
	verb string // of its button
}

// deeds are the actions, by the path of a kind of mechanism and the last segment.
var deeds = map[string]deed{
	"locks/release":      {operate.ReleaseLock, "Release"},
	"permits/release":    {operate.ReleasePermits, "Take back"},
	"limits/reset":       {operate.ResetLimit, "Reset"},
	"limits/hold":        {operate.HoldLimit, "Hold"},
	"operations/resolve": {operate.ResolveOperation, "Resolve"},
	"tasks/cancel":       {operate.CancelTask, "Cancel"},
	"tasks/revive":       {operate.ReviveTask, "Revive"},
}

// actionData is the content of the page that asks for a reason.
type actionData struct {
	Kind   *kind            `json:"-"`
	Name   string           `json:"name"`
	Verb   string           `json:"verb"`
	Effect string           `json:"effect"`
	Key    operate.ShownKey `json:"key"`
	Facts  []fact           `json:"now"`
	Hidden []fact           `json:"-"` // fields of the form
	Own    bool             `json:"-"` // of an operation: its guard is this process's, and takes an answer
	Deed   string           `json:"-"`
}

type fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// confirmation is the page of an action: what there is now, what will happen, and why.
func (q *request) confirmation(of object, last string) (view, error) {
	do, ok := deeds[of.Path+"/"+last]
	if !ok || of.Path == "limits" { // whose key stands in no URL
		return view{}, errNotFound
	}
	if !q.mayAct() {
		return view{}, errView
	}
	return view{title: do.verb + " " + of.Thing, template: "action", load: func(ctx context.Context) (any, error) {
		return q.asks(ctx, of, do, q.URL.Query().Get("fence"))
	}}, nil
}

// asks returns the page of an action, with the object as it is now.
func (q *request) asks(ctx context.Context, of object, do deed, fence string) (*actionData, error) {
	d := &actionData{Kind: of.kind, Name: of.name, Verb: do.verb, Effect: do.kind.Effect(), Deed: string(do.kind)}
	switch of.Path {
	case "locks", "permits":
		number, err := fenceOf(fence)
		if err != nil {
			return nil, err
		}
		k, err := q.findLease(ctx, of)
		if err != nil {
			return nil, err
		}
		for i := range k.Holders {
			if h := &k.Holders[i]; h.Fence == number {
				d.Key = q.key(k.Key)
				d.Facts = []fact{
					{"Holder", operate.OneLine(h.Label)}, {"Held for", short(h.Age)}, {"Fence", fence},
					{"Lease", short(h.Remaining) + " left"}, {"Waiting", strconv.Itoa(k.Waiting)},
				}
				d.Hidden = []fact{{"fence", fence}}
				return d, nil
			}
		}
		return nil, problem{404, "This hold has ended: nothing is left to release."}
	case "operations":
		o, err := q.operation(ctx, of)
		if err != nil {
			return nil, err
		}
		if !o.One.Unresolved {
			return nil, problem{409, "Its outcome is known, or an attempt is in flight: nothing is left to resolve."}
		}
		st, err := q.store(ctx, of)
		if err != nil {
			return nil, err
		}
		_, d.Own = inspect.Guard(st, of.name)
		d.Key = operate.ShownKey{ID: of.id}
		d.Facts = []fact{
			{"State", string(o.One.State)}, {"Attempt", strconv.Itoa(o.One.Attempt)}, {"Process", operate.OneLine(o.One.Holder)},
			{"Last change", short(o.One.Changed) + " ago"}, {"Record kept for", short(o.One.Expires)},
		}
		d.Hidden = []fact{{"version", o.One.Version}}
	case "tasks":
		t, err := q.findTask(ctx, of)
		if err != nil {
			return nil, err
		}
		if do.kind == operate.ReviveTask && t.State != store.TaskKeptBuried {
			return nil, problem{409, "The task is not buried."}
		}
		one := q.taskOf(of, t)
		d.Key = one.Key
		d.Facts = []fact{{"State", one.State}, {"Attempts", strconv.Itoa(one.Attempt)}, {"ID", one.ID}}
		if one.Reason != "" {
			d.Facts = append(d.Facts, fact{"Buried because of", operate.OneLine(one.Reason)})
		}
		d.Hidden = []fact{{"version", one.ID}}
	}
	return d, nil
}

// act carries out an action, and leads to the page of its object. A limit's form without a reason has
// the page that asks for it.
func (q *request) act(w http.ResponseWriter, of object, last string) error {
	do, ok := deeds[of.Path+"/"+last]
	if !ok {
		return errNotFound
	}
	if !q.mayAct() {
		q.console.actions.Refused(q.Context(), string(do.kind), of.name, q.operator.Name, "no right to act")
		return errView
	}
	if of.Path == "limits" && !q.form.Has("why") {
		return q.render(w, view{title: do.verb + " " + of.Thing, template: "action", load: func(context.Context) (any, error) {
			return q.asksLimit(of, do), nil
		}})
	}
	a, st, err := q.actionOf(of, do)
	if err != nil {
		return err
	}
	if err := operate.CheckWhy(a.Why); err != nil {
		return err
	}
	told := Action{
		Kind: string(a.Kind), Name: a.Name, KeyID: a.KeyID(), Operator: a.Operator, Why: operate.OneLine(a.Why), Detail: a.Detail,
	}
	if q.console.onAction != nil {
		if err := q.console.onAction(q.Context(), told); err != nil {
			q.console.actions.Refused(q.Context(), told.Kind, told.Name, told.Operator, "OnAction")
			return problem{http.StatusForbidden, "Refused: " + operate.OneLine(err.Error())}
		}
	}
	outcome, err := operate.Do(q.Context(), st, a)
	told.Outcome = string(outcome)
	q.console.actions.Acted(q.Context(), told.Kind, told.Name, told.Operator, told.Why, told.Outcome)
	if q.console.onAction != nil {
		if after := q.console.onAction(context.WithoutCancel(q.Context()), told); after != nil {
			q.console.actions.NotTold(q.Context(), told.Kind, told.Name, after)
		}
	}
	if err != nil && outcome != operate.Done && outcome != operate.Changed {
		return err
	}
	if q.asJSON() {
		return writeJSON(w, http.StatusOK, struct {
			Outcome operate.Outcome `json:"outcome"`
			Error   string          `json:"error,omitempty"`
		}{outcome, textOf(err)})
	}
	to := q.root() + of.Path + "/" + escapeName(of.name)
	if of.Path == "operations" || outcome == operate.Changed && of.Path != "limits" {
		to += "/" + url.PathEscape(of.id) // how it is now
	}
	answer := string(outcome)
	if err != nil { // of the log, or else the outcome would be another one
		answer += answerUnlogged
	}
	w.Header().Set("Location", to+"?answer="+answer)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (q *request) asksLimit(of object, do deed) *actionData {
	key := q.form.Get("key")
	d := &actionData{
		Kind: of.kind, Name: of.name, Verb: do.verb, Effect: do.kind.Effect(), Key: q.key(key), Deed: string(do.kind),
		Hidden: []fact{{"key", key}},
	}
	if do.kind == operate.HoldLimit {
		d.Hidden = append(d.Hidden, fact{"hold", q.form.Get("hold")})
		d.Facts = []fact{{"For", q.form.Get("hold")}}
	}
	return d
}

// actionOf reads an action from its form.
func (q *request) actionOf(of object, do deed) (a operate.Action, st store.Documents, err error) {
	a = operate.Action{Kind: do.kind, Name: of.name, Operator: q.operator.Name, Why: q.form.Get("why")}
	if st, err = q.store(q.Context(), of); err != nil {
		return a, nil, err
	}
	switch of.Path {
	case "locks", "permits":
		if a.Fence, err = fenceOf(q.form.Get("fence")); err != nil {
			return a, nil, err
		}
		a.Detail = "fence " + q.form.Get("fence")
		k, err := q.findLease(q.Context(), of)
		a.Key = k.Key
		return a, st, unlessGone(err, &a, of.id)
	case "limits":
		a.Key = q.form.Get("key")
		if do.kind == operate.HoldLimit {
			if a.Hold, err = time.ParseDuration(q.form.Get("hold")); err != nil || a.Hold < time.Millisecond || a.Hold > tokenbucket.MaxHold {
				return a, nil, problem{400, "The time of a hold is between 1ms and 720h, such as 10m."}
			}
			a.Detail = "for " + a.Hold.String()
		}
	case "operations":
		a.Key, a.Version = of.id, q.form.Get("version")
		return a, st, q.resolution(&a)
	case "tasks":
		a.Version = q.form.Get("version")
		t, err := q.findTask(q.Context(), of)
		a.Key = t.Key
		return a, st, unlessGone(err, &a, of.id)
	}
	return a, st, nil
}

// unlessGone makes an action about an object that is gone one that finds it changed.
func unlessGone(err error, a *operate.Action, id string) error {
	var p problem
	if errors.As(err, &p) && p.status == http.StatusNotFound {
		a.Gone = id
		return nil
	}
	return err
}

// resolution reads how an operation is resolved.
func (q *request) resolution(a *operate.Action) error {
	status := http.StatusOK
	if text := q.form.Get("status"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 200 || n > 599 {
			return problem{400, "The status is a number from 200 to 599."}
		}
		status = n
	}
	var how guard.Resolution
	switch q.form.Get("outcome") {
	case "never happened":
		how = guard.NeverHappened()
		a.Detail = "never happened"
	case "answer lost":
		how = guard.HappenedAnswerLost(status)
		a.Detail = fmt.Sprintf("happened, answer lost, status %d", status)
	case "happened":
		header := http.Header{}
		if kind := strings.TrimSpace(q.form.Get("type")); kind != "" {
			if kind != operate.OneLine(kind) {
				return problem{400, "The content type is one line."}
			}
			header.Set("Content-Type", kind)
		}
		how = guard.Happened(idempotency.Answer(status, header, []byte(q.form.Get("body"))))
		a.Detail = fmt.Sprintf("happened, with an answer of %d bytes, status %d", len(q.form.Get("body")), status)
		a.NeedsOwn = true
	default:
		return problem{400, "Choose how it ended."}
	}
	a.Resolve = &how
	return nil
}
