package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
)

// majority says what the table of kinds cannot.
const majority = "Redlock's majority is no fence: it grants a random value, which has no order, so that what a holder writes to\n" +
	"cannot refuse one that was paused until its keys had expired on a majority and another process had the lock."

// document is what a lock protects: the copy of a service that is no part of the trial.
type document struct {
	mu   sync.Mutex
	text string
	gate fence.Gate
}

func (d *document) set(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.text = text
}

func (d *document) setFenced(text string, t fence.Token) error {
	return d.gate.Do(t, func() error {
		d.set(text)
		return nil
	})
}

func (d *document) get() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text
}

// duel is a trial of two processes, which compete for a lock on servers.
type duel struct {
	field  *field
	ttl    time.Duration
	pa, pb *party
	a, b   holder
	doc    document
}

// duels are the trials of each kind.
var duels = []struct {
	name  string
	run   func(ctx context.Context, d *duel) (finding, error)
	fails bool // one of the servers
	alone bool // it is not played beside others: it measures, or starts several servers
}{
	{name: "A is killed", run: killed},
	{name: "A is paused, then writes", run: paused},
	{name: "A is cut off from the servers", run: cutOff},
	{name: "the server fails over, or restarts", run: failedOver, fails: true, alone: true},
	{name: "the cost of a lock and its release", run: costs, alone: true},
}

// compare runs the duels of all kinds on the servers that are installed.
func compare(ctx context.Context, ttl time.Duration) (rows []row, err error) {
	for _, k := range kinds() {
		of, err := k.compare(ctx, ttl)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		rows = append(rows, of...)
	}
	return rows, nil
}

func (k kind) compare(ctx context.Context, ttl time.Duration) ([]row, error) {
	h := &host{}
	defer h.close()
	rows := make([]row, len(duels))
	for i, d := range duels {
		rows[i].trial = trial{scheme: k.name, name: d.name}
	}
	var servers *field
	err := h.start(func() { servers = k.one(h) })
	if errors.Is(err, errMissing) {
		for i := range rows {
			rows[i].classic = finding{absent, err.Error()}
			rows[i].keeper = rows[i].classic
		}
		return rows, nil
	}
	if err != nil {
		return nil, err
	}
	errs := make([]error, 2*len(rows))
	var wg sync.WaitGroup
	for i, d := range duels {
		if d.alone {
			wg.Wait()
		}
		for side, found := range []*finding{&rows[i].classic, &rows[i].keeper} {
			play := func() { *found, errs[2*i+side] = k.play(ctx, servers, ttl, side == 1, i) }
			if d.alone {
				play()
			} else {
				wg.Go(play)
			}
		}
	}
	wg.Wait()
	return rows, errors.Join(errs...)
}

// play plays one side of a duel.
func (k kind) play(ctx context.Context, servers *field, ttl time.Duration, keeper bool, i int) (found finding, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+10*ttl)
	defer cancel()
	h := &host{}
	defer h.close()
	d := &duel{field: servers, ttl: ttl}
	if duels[i].fails {
		d.ttl = 3 * ttl // longer than an election
		if err := h.start(func() { d.field = k.several(h) }); err != nil {
			return finding{}, err
		}
	}
	key := rand.Text()
	for _, side := range []struct {
		party **party
		lock  *holder
	}{{&d.pa, &d.a}, {&d.pb, &d.b}} {
		if err := h.start(func() { *side.party = h.newParty(d.field.addrs) }); err != nil {
			return finding{}, err
		}
		if *side.lock, err = k.open(*side.party, key, d.ttl, keeper); err != nil {
			return finding{}, err
		}
	}
	h.Cleanup(func() { // before what is connected is closed
		d.pa.mend()
		d.pb.mend()
	})
	if found, err = duels[i].run(ctx, d); err != nil {
		err = fmt.Errorf("%s, of Lockkeeper %v: %w", duels[i].name, keeper, err)
	}
	return found, err
}

// open returns the lock of a process.
func (k kind) open(p *party, key string, ttl time.Duration, keeper bool) (holder, error) {
	if !keeper {
		return k.recipe(p, key, ttl)
	}
	st, err := k.keep(p, ttl)
	if err != nil {
		return nil, err
	}
	return newKept(p, st, key, ttl)
}

// rounded is a duration as a table shows it.
func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

func killed(ctx context.Context, d *duel) (finding, error) {
	if err := d.a.lock(ctx); err != nil {
		return finding{}, err
	}
	d.pa.kill()
	began := time.Now()
	patience, cancel := context.WithTimeout(ctx, 10*d.ttl)
	defer cancel()
	if err := d.b.lock(patience); err != nil {
		return finding{broken, "B did not get the lock"}, ctx.Err()
	}
	text := fmt.Sprintf("B had it after %v", rounded(time.Since(began)))
	return finding{sound, text}, d.b.unlock(ctx)
}

func paused(ctx context.Context, d *duel) (finding, error) {
	if err := d.a.lock(ctx); err != nil {
		return finding{}, err
	}
	d.pa.silence()
	if err := d.b.lock(ctx); err != nil {
		return finding{}, err
	}
	return d.late(d.b.write(&d.doc, "B's"))
}

// late has A write, after B has.
func (d *duel) late(err error) (finding, error) {
	if err != nil {
		return finding{}, err
	}
	err = d.a.write(&d.doc, "A's")
	switch {
	case errors.Is(err, fence.ErrStale) && d.doc.get() == "B's":
		return finding{fenced, "A's write was refused: its fence was lower than B's"}, nil
	case err != nil:
		return finding{}, err
	}
	return finding{broken, "A, awake again, overwrote what B had written"}, nil
}

func cutOff(ctx context.Context, d *duel) (finding, error) {
	if err := d.a.lock(ctx); err != nil {
		return finding{}, err
	}
	d.pa.silence()
	told := make(chan time.Time, 1)
	over := d.a.over()
	go func() {
		select {
		case <-over:
			told <- time.Now()
		case <-ctx.Done():
		}
	}()
	if err := d.b.lock(ctx); err != nil {
		return finding{}, err
	}
	got := time.Now()
	select {
	case at := <-told:
		if before := got.Sub(at); before > 0 {
			return finding{sound, fmt.Sprintf("A was told %v before B had it", rounded(before))}, nil
		}
		return finding{broken, fmt.Sprintf("A was told %v after B had it", rounded(at.Sub(got)))}, nil
	case <-time.After(2 * d.ttl):
		return finding{broken, "A was told nothing: two holders"}, nil
	case <-ctx.Done():
		return finding{}, ctx.Err()
	}
}

func failedOver(ctx context.Context, d *duel) (finding, error) {
	if len(d.pa.wires) == masters { // B's majority shares one master with A's
		for _, w := range d.pa.wires[3:] {
			w.BlackHole()
		}
	}
	if err := d.a.lock(ctx); err != nil {
		return finding{}, err
	}
	if err := (&host{}).start(func() { d.field.fails(d.pa, d.pb) }); err != nil {
		return finding{}, err
	}
	patience, cancel := context.WithTimeout(ctx, d.ttl/2)
	defer cancel()
	err := d.b.lock(patience)
	select {
	case <-d.a.over():
		return finding{sound, "A was told that its lock was over"}, ctx.Err()
	default:
	}
	if err != nil {
		return finding{sound, "A kept the lock, and B waited"}, d.release(ctx)
	}
	found, err := d.late(d.b.write(&d.doc, "B's"))
	found.text = "two holders; " + found.text
	return found, err
}

// release releases A's lock. Servers that elect a leader refuse that at first, or do it and do not reply.
func (d *duel) release(ctx context.Context) error {
	for {
		if err := d.a.unlock(ctx); err == nil || wait(ctx, pause) != nil {
			return err
		}
	}
}

// rounds is how often the costs are counted.
const rounds = 50

func costs(ctx context.Context, d *duel) (finding, error) {
	once := func() error { return errors.Join(d.a.lock(ctx), d.a.unlock(ctx)) }
	if err := errors.Join(once(), once()); err != nil { // connects, and learns what is learned once
		return finding{}, err
	}
	before, err := d.field.syncs()
	if err != nil {
		return finding{}, err
	}
	sent := 0
	for n := range 1 + rounds {
		if err := once(); err != nil {
			return finding{}, err
		}
		if n == 0 { // it may have connected again
			sent = d.pa.trips()
		}
	}
	trips := d.pa.trips() - sent
	after, err := d.field.syncs()
	if err != nil {
		return finding{}, err
	}
	text := fmt.Sprintf("%.1f round trips, %.1f waits for a disk", float64(trips)/rounds, float64(after-before)/(1+rounds))
	return finding{sound, text}, nil
}
