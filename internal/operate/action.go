package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// Kind is a kind of action.
type Kind string

// The kinds of actions.
const (
	ReleaseLock      Kind = "release_lock"
	ReleasePermits   Kind = "release_permits"
	ResetLimit       Kind = "reset_limit"
	HoldLimit        Kind = "hold_limit"
	ResolveOperation Kind = "resolve_operation"
	CancelTask       Kind = "cancel_task"
	ReviveTask       Kind = "revive_task"
	PushRules        Kind = "push_rules"
	RollbackRules    Kind = "rollback_rules"
)

// Outcome is the outcome of an action.
type Outcome string

const (
	// Done means that the action was carried out.
	Done Outcome = "done"
	// Changed means that its object is not as the operator has seen it. Nothing was done.
	Changed Outcome = "changed"
	// Failed means that the store, or the object, has refused it.
	Failed Outcome = "failed"
	// Unconfirmed means that the store may have carried it out.
	Unconfirmed Outcome = "unconfirmed"
)

// Action is a change that an operator asks for.
type Action struct {
	Kind Kind
	Name string // the mechanism's, or the document's
	Key  string // of the lock, the semaphore, the limiter or the task; the ID of an operation

	// Fence, or Version, is what the operator has seen: of a hold, or of an operation or a task. An
	// action on a limit has neither.
	Fence   int64
	Version string

	// Gone is the ID of the key that the operator has seen, if no object has such a key any more: then
	// it has changed.
	Gone string

	Hold     time.Duration     // of HoldLimit
	Resolve  *guard.Resolution // of ResolveOperation
	NeedsOwn bool              // it has an answer, which only a guard of this process can seal
	Detail   string            // for the log, such as the resolution

	// Run carries out PushRules and RollbackRules, which are in a module of their own. It reports false
	// if the document has changed, and may set the detail.
	Run func(context.Context, *Action) (done bool, err error)

	Operator, Why string
}

// slowest bounds an action and its entry in the log; the store's own timeouts are far shorter.
const slowest = 30 * time.Second

// The bounds of a reason, in characters.
const (
	MinWhy = 3
	MaxWhy = 500
)

var (
	// ErrInvalid is matched by the error of an action that cannot be carried out by anyone, such as
	// one without a reason.
	ErrInvalid = errors.New("invalid action")
	// ErrUnknownHere is matched by the error of an action that needs the mechanism itself, if this
	// process does not have it.
	ErrUnknownHere = errors.New("this process does not have the mechanism")
)

// KeyID returns the text that stands for a key in pages, addresses and the log.
func KeyID(key string) string { return presence.KeyHash(key) }

// OneLine returns a text with every control character, line break, and control of the direction of
// writing, which can make a text look like another one, replaced by a space.
func OneLine(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD")))
}

// CheckWhy returns an error that matches ErrInvalid if a reason is too short or too long.
func CheckWhy(why string) error {
	if n := utf8.RuneCountInString(OneLine(why)); n < MinWhy || n > MaxWhy {
		return fmt.Errorf("%w: a reason has %d to %d characters, and this one has %d", ErrInvalid, MinWhy, MaxWhy, n)
	}
	return nil
}

// Do carries out an action, if its object is as the operator has seen it, and logs it in the store. It
// returns the outcome, and an error if that is Failed or Unconfirmed, or if the log could not be
// written. An action that is invalid is not logged. The end of ctx does not end an action: half of one
// would be left, and no log.
func Do(ctx context.Context, st store.Documents, a Action) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), slowest)
	defer cancel()
	a.Why, a.Operator = OneLine(a.Why), OneLine(a.Operator)
	if err := CheckWhy(a.Why); err != nil {
		return Failed, err
	}
	if a.Operator == "" {
		return Failed, fmt.Errorf("%w: no operator", ErrInvalid)
	}
	done, err := false, error(nil)
	if a.Gone == "" {
		done, err = carryOut(ctx, st, &a)
	}
	outcome := outcomeOf(ctx, done, err)
	if errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnknownHere) {
		return outcome, err
	}
	logged := write(ctx, st, Entry{
		Kind: a.Kind, Name: a.Name, KeyID: a.KeyID(), Operator: a.Operator, Why: a.Why, Detail: a.Detail, Outcome: outcome,
	})
	if logged != nil {
		err = errors.Join(err, fmt.Errorf("the action was not logged: %w", logged))
	}
	return outcome, err
}

func outcomeOf(ctx context.Context, done bool, err error) Outcome {
	switch {
	case errors.Is(err, store.ErrUnconfirmed), err != nil && ctx.Err() != nil:
		return Unconfirmed
	case err != nil:
		return Failed
	case !done:
		return Changed
	}
	return Done
}

// KeyID returns the ID of the action's key: that of an operation reveals nothing.
func (a *Action) KeyID() string {
	switch {
	case a.Gone != "":
		return a.Gone
	case a.Kind == ResolveOperation:
		return a.Key
	case a.Kind == PushRules, a.Kind == RollbackRules:
		return ""
	}
	return KeyID(a.Key)
}

func carryOut(ctx context.Context, st store.Documents, a *Action) (done bool, err error) {
	switch a.Kind {
	case ReleaseLock:
		return revoke(ctx, st, store.LockKind+a.Name, a)
	case ReleasePermits:
		return revoke(ctx, st, store.SemaphoreKind+a.Name, a)
	case ResetLimit, HoldLimit:
		return limit(ctx, st, a)
	case ResolveOperation:
		return resolve(ctx, st, a)
	case CancelTask, ReviveTask:
		return task(ctx, st, a)
	case PushRules, RollbackRules:
		if a.Run != nil {
			return a.Run(ctx, a)
		}
	}
	return false, fmt.Errorf("%w: %q is none", ErrInvalid, a.Kind)
}

func revoke(ctx context.Context, st store.Documents, name string, a *Action) (bool, error) {
	able, err := store.As[store.LeaseRevoker](st)
	if err != nil {
		return false, err
	}
	return able.RevokeLease(ctx, name, a.Key, a.Fence)
}

func limit(ctx context.Context, st store.Documents, a *Action) (bool, error) {
	limiter, free, err := Limiter(ctx, st, a.Name)
	if err != nil {
		return false, err
	}
	defer free()
	if a.Kind == ResetLimit {
		err = limiter.Reset(ctx, a.Key)
	} else {
		err = limiter.Hold(ctx, a.Key, a.Hold)
	}
	return err == nil, err
}

func resolve(ctx context.Context, st store.Documents, a *Action) (bool, error) {
	if a.Resolve == nil {
		return false, fmt.Errorf("%w: no resolution", ErrInvalid)
	}
	if _, own := inspect.Guard(st, a.Name); a.NeedsOwn && !own {
		return false, fmt.Errorf("%w: only a process that has guard %q can record an answer", ErrUnknownHere, a.Name)
	}
	g, free, err := Guard(st, a.Name)
	if err != nil {
		return false, err
	}
	defer free()
	seen, err := g.InspectID(ctx, a.Key)
	switch {
	case errors.Is(err, guard.ErrNoRecord):
		return false, nil
	case err != nil:
		return false, err
	case seen.Version() != a.Version:
		return false, nil
	}
	err = g.Resolve(ctx, seen, *a.Resolve, a.Operator, a.Why)
	if errors.Is(err, guard.ErrChanged) || errors.Is(err, guard.ErrOutcomeKnown) || errors.Is(err, guard.ErrInFlight) {
		return false, nil
	}
	return err == nil, err
}

func task(ctx context.Context, st store.Documents, a *Action) (bool, error) {
	seen, found, err := inspect.Task(ctx, st, a.Name, a.Key)
	if err != nil || !found || seen.TaskID != a.Version {
		return false, err
	}
	if a.Kind == ReviveTask && seen.State != store.TaskKeptBuried {
		return false, nil
	}
	if a.Kind == ReviveTask {
		able, err := store.As[store.TaskKeeper](st)
		if err != nil {
			return false, err
		}
		return able.ReviveTask(ctx, store.TaskRef{Queue: a.Name, Key: a.Key, ID: seen.ID})
	}
	able, err := store.As[store.Delays](st)
	if err != nil {
		return false, err
	}
	outcome, err := able.CancelTask(ctx, store.CancelTaskRequest{Queue: a.Name, Key: a.Key, ID: naming.NewID(), Task: seen.ID})
	if err != nil || outcome == store.TaskAbsent {
		return false, err
	}
	a.Detail = cancelled[outcome]
	return true, nil
}

// cancelled describes the outcomes of a cancel.
var cancelled = map[store.CancelOutcome]string{
	store.TaskPrevented: "it had not run, and will not",
	store.TaskEnded:     "it will not run again, and may have had effects",
	store.TaskRunning:   "it runs, and ends by itself",
}
