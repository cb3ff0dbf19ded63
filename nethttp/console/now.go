package console

import (
	"context"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// nowData is the content of the page Now.
type nowData struct {
	Sentence  string            `json:"sentence"`
	Troubles  []operate.Trouble `json:"troubles"`
	Processes int               `json:"processes"`
	Age       string            `json:"age"`                  // of the oldest description
	LeftAge   string            `json:"left_age,omitempty"`   // of the work that is left
	LeftError string            `json:"left_error,omitempty"` // of looking for it
	Error     string            `json:"error,omitempty"`      // of the store: only this process is known
}

// now answers what is wrong.
func (q *request) now() view {
	return view{title: "Now", template: "now", live: true, load: func(ctx context.Context) (any, error) {
		s, err := q.console.fleet.get(ctx, true)
		if err != nil {
			return nil, err
		}
		d := &nowData{Processes: len(s.processes), Age: short(oldest(s.processes) + time.Since(s.at))}
		found := slices.Clone(s.troubles)
		if s.err != nil {
			d.Error = storeText(s.err) + " Only this process is shown."
		} else {
			left, age, err := q.console.fleet.waiting(ctx, s.processes)
			found = append(found, left...)
			switch {
			case age < 0:
				d.LeftAge = "being looked for"
			default:
				d.LeftAge = short(age) + " old"
			}
			if err != nil {
				d.LeftError = storeText(err)
			}
		}
		d.Troubles = operate.Sort(found)
		d.Sentence = sentenceOf(d.Troubles, d.Error != "")
		return d, nil
	}}
}

func sentenceOf(found []operate.Trouble, down bool) string {
	if down && operate.Wrong(found) == 0 {
		return "The store does not reply."
	}
	return operate.Sentence(found)
}

// oldest returns the age of the oldest description of a process.
func oldest(processes []presence.Process) (age time.Duration) {
	for i := range processes {
		age = max(age, processes[i].Age)
	}
	return age
}
