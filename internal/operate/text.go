package operate

import (
	"fmt"
	"time"
)

// Short rounds a time for people.
func Short(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Short(-d)
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d d", int(d.Hours())/24)
	}
}

// Wrong returns the number of troubles that are more than a notice.
func Wrong(found []Trouble) (n int) {
	for _, t := range found {
		if t.Severity > Notice {
			n++
		}
	}
	return n
}

// Sentence sums up what is wrong.
func Sentence(found []Trouble) string {
	switch n := Wrong(found); {
	case len(found) == 0:
		return "Nothing is wrong."
	case n == 0:
		return "Nothing is wrong. Some things are worth a look."
	case n == 1:
		return "One thing is wrong."
	default:
		return fmt.Sprintf("%d things are wrong.", n)
	}
}

const (
	effectOfRelease = "The holder's context ends, and it must stop. A write that it has in flight is stopped by a fence only, " +
		"so end its process first if you can."
	effectOfResolution = "A repeat of the request then gets the answer that you choose, or runs again. Say that it never " +
		"happened only if nothing of it can arrive any more."
)

// Effect returns what an action of the kind will do, in a sentence or two.
func (k Kind) Effect() string {
	switch k {
	case ReleaseLock, ReleasePermits:
		return effectOfRelease
	case ResolveOperation:
		return effectOfResolution
	case ResetLimit:
		return "The key has all of its tokens again, and its hold ends. Processes notice within a second."
	case HoldLimit:
		return "All requests of the key are denied for that time. A longer hold stays."
	case PushRules:
		return "Processes that follow the document have it in force within seconds. One that finds an error in it keeps the " +
			"document before."
	case RollbackRules:
		return "It is a new version, which processes that follow the document have in force within seconds."
	case CancelTask:
		return "The task is removed. If it runs, it ends by itself."
	case ReviveTask:
		return "The task is due at once, with all its attempts before it. An earlier attempt may have had effects."
	}
	return ""
}
