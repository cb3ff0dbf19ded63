package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

const (
	// target is how far the counter counts.
	target = 200
	// patience is how long all of that may take on a store.
	patience = 2 * time.Minute
)

// row is what a store took.
type row struct {
	kind                          string
	started, all                  time.Duration // until its server replied, and from before that to its end
	counted, afterKill, afterWait time.Duration // of all increments, and from a fault to the next holder
	value, lost, late             int
	note                          string
}

// sound reports whether each increment counted once, and both faults hit a holder.
func (r row) sound() bool {
	return r.value == target && r.lost == 0 && r.late > 0 && r.afterKill > 0 && r.afterWait > 0
}

// play starts the server of a store, and has workers increment a counter.
func play(ctx context.Context, kind string) (r row, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	r.kind = kind
	began := time.Now()
	defer func() { r.all = time.Since(began) }()
	addr, stop, err := start(ctx, kind)
	if err != nil {
		return r, err
	}
	defer stop()
	r.started = time.Since(began)
	c := &counter{target: target}
	defer context.AfterFunc(ctx, c.end)()
	counting := time.Now()
	if kind == "memory" {
		err = runGoroutines(ctx, c)
	} else {
		err = runProcesses(ctx, kind, addr, c)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.counted, r.afterKill, r.afterWait = time.Since(counting), c.afterKill, c.afterPause
	r.value, r.lost, r.late = c.value, c.lost, c.late
	return r, err
}

// verdict returns a row's last cell.
func verdict(r row, err error) string {
	switch {
	case errors.Is(err, errNotInstalled):
		return errNotInstalled.Error()
	case err != nil:
		return "failed: " + err.Error()
	case !r.sound():
		return "WRONG: an increment was lost, or a fault has hit no holder"
	case r.kind == "memory":
		return "ok, by goroutines in the place of processes"
	}
	return "ok"
}

// writeTable writes the rows as a table.
func writeTable(w io.Writer, rows []row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(t, "store\tserver started\t%d increments\tnext holder after the kill\tafter the pause\tlate writes refused\tlost\tall\t\n", target)
	seconds := func(d time.Duration) string {
		if d == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	for _, r := range rows {
		if r.value == 0 {
			_, _ = fmt.Fprintf(t, "%s\t-\t-\t-\t-\t-\t-\t-\t%s\n", r.kind, r.note)
			continue
		}
		started := seconds(r.started)
		if r.kind == "memory" {
			started = "-"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", r.kind, started, seconds(r.counted), seconds(r.afterKill),
			seconds(r.afterWait), r.late, r.lost, seconds(r.all), r.note)
	}
	return t.Flush()
}
