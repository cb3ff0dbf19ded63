package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/rules"
)

// show plays acts, and has what is to be seen of them.
type show struct {
	scene   scene
	seconds int    // of a phase
	onRow   func() // is called after a row, and after the end of a phase; may be nil

	mu    sync.Mutex
	state state
}

// state is what the page shows.
type state struct {
	Running bool    `json:"running"`
	Phases  []phase `json:"phases"`
	Rules   string  `json:"rules"` // the text of rules.yaml, while it is used
	Path    string  `json:"path"`  // of that file
}

// current returns a copy.
func (s *show) current() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state
	c.Phases = append([]phase{}, s.state.Phases...) // rows are only added
	return c
}

func (s *show) change(f func(*state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.state)
}

// play plays acts, one after the other, until ctx ends.
func (s *show) play(ctx context.Context, acts []act) (err error) {
	s.change(func(st *state) { *st = state{Running: true} })
	defer s.change(func(st *state) { st.Running = false })
	for _, a := range acts {
		if err = s.act(ctx, a); err != nil {
			break
		}
	}
	return cmp.Or(context.Cause(ctx), err)
}

func (s *show) act(ctx context.Context, a act) (err error) {
	v, err := start(s.scene, a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.kill()) }()
	var file *rulesFile
	if a.edited {
		if file, err = newRulesFile(s.scene); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.remove()) }()
		show := func(rules.Applied) {
			text, err := file.text()
			if err != nil {
				log.Println(err)
			}
			s.change(func(st *state) { st.Rules, st.Path = string(text), file.path })
		}
		r, err := follow(ctx, v.gate, file.path, show)
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		show(r.Applied())
	}
	load := newLoad(s.scene, v.url)
	loading, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { load.run(loading) })
	defer running.Wait()
	defer stop()
	for i, p := range a.phases {
		if i > 0 {
			if err := file.edit(); err != nil {
				return err
			}
		}
		if err := s.phase(ctx, p, v, load); err != nil {
			return err
		}
	}
	return nil
}

// phase counts what becomes of requests for some seconds.
func (s *show) phase(ctx context.Context, p phase, v *service, l *load) error {
	p.Rows = make([]row, 0, s.seconds)
	last := 0
	s.change(func(st *state) {
		st.Phases = append(st.Phases, p)
		last = len(st.Phases) - 1
	})
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for i := range s.seconds {
		select {
		case <-second.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		row := l.take()
		row.Capacity = v.capacity()
		s.change(func(st *state) {
			p := &st.Phases[last]
			p.Rows = append(p.Rows, row)
			if i == s.seconds-1 {
				settled := perSecond(p.Rows[(s.seconds+1)/2:])
				p.Settled = &settled
			}
		})
		if s.onRow != nil {
			s.onRow()
		}
	}
	return nil
}

// print plays all acts, and prints a row a second.
func (s *show) print(ctx context.Context, w io.Writer) error {
	possible := s.scene.possible()
	_, err := fmt.Fprintf(w, "%d workers, %v to %v a request: %.0f a second can be served. %.0f a second come, half of them\n"+
		"orders and half searches, which are of low priority. Clients leave after %v, and an answer should take\n"+
		"%v at most. Figures are requests a second.\n", s.scene.workers, s.scene.least, s.scene.most, possible,
		possible*s.scene.load, s.scene.patience, s.scene.target)
	path, text := "", ""
	line := func(what string, r row) {
		_, failed := fmt.Fprintf(w, "%12s %7d %8d %8d %6d %7d ms %9s\n", what, r.High, r.Low, r.Refused, r.Late+r.Failed, r.P99, capacityOf(r))
		err = cmp.Or(err, failed)
	}
	s.onRow = func() {
		st := s.current()
		p := st.Phases[len(st.Phases)-1]
		if len(p.Rows) == 1 {
			_, failed := fmt.Fprintf(w, "\n%s: %s\n%12s %7s %8s %8s %6s %10s %9s\n", p.Name, p.About, "second", "orders", "searches", "refused", "late", "p99", "capacity")
			err = cmp.Or(err, failed)
		}
		if st.Path != path {
			path = st.Path
			_, _ = fmt.Fprintf(w, "%s:\n", path)
		}
		if st.Rules != text {
			text = st.Rules
			_, _ = fmt.Fprintf(w, "%s", text)
		}
		line(fmt.Sprint(len(p.Rows)), p.Rows[len(p.Rows)-1])
		if p.Settled != nil {
			line("second half", *p.Settled)
		}
	}
	if played := s.play(ctx, acts()); ctx.Err() == nil { // otherwise the user has interrupted it
		err = cmp.Or(played, err)
	}
	return err
}

func capacityOf(r row) string {
	if r.Capacity == 0 {
		return "none"
	}
	return fmt.Sprint(r.Capacity)
}
