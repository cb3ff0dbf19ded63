package presence

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

// The spaces of documents. A name is the ID of a process, but for the only one of watchSpace, which
// a call of Watch puts.
const (
	presenceSpace = "presence"
	historySpace  = "presence-history"
	watchSpace    = "presence-watch"
	watchName     = "watched"
)

const (
	// maxDocument and maxHistory bound what a process writes, in bytes.
	maxDocument, maxHistory = 8 << 10, 32 << 10
	// maxDescribed and maxHistories bound of how many mechanisms it tries to write them.
	maxDescribed, maxHistories = 512, 64
	// maxRules bounds the documents with rules that it writes.
	maxRules = 8
	// maxWrittenKeys bounds the denied keys of each mechanism.
	maxWrittenKeys = 10
	// maxInflated bounds a document that is read, inflated, in bytes.
	maxInflated = 4 << 20
)

// format is the first byte of both kinds of documents. Deflated text follows.
const format = 3

// written is a process in JSON.
type written struct {
	Service    string       `json:"s"`
	Host       string       `json:"h"`
	PID        int          `json:"p"`
	Up         int64        `json:"u"` // milliseconds
	Version    string       `json:"v"`
	Go         string       `json:"g"`
	Stores     []writtenSt  `json:"st"`
	Mechanisms []writtenMec `json:"m"`
	More       int          `json:"x,omitempty"`
	Rules      []writtenRul `json:"r,omitempty"`
}

type writtenRul struct {
	Source   string `json:"k"`
	Name     string `json:"n"`
	State    string `json:"s"`
	Since    int64  `json:"t"` // milliseconds
	Version  string `json:"v,omitempty"`
	Revision int64  `json:"r,omitempty"`
	Hash     string `json:"h"`
	Errors   int    `json:"e,omitempty"`
}

type writtenSt struct {
	Kind     string          `json:"k"`
	Down     bool            `json:"d,omitempty"`
	Findings []store.Finding `json:"f,omitempty"`
	Calls    writtenAct      `json:"c"`
}

type writtenMec struct {
	Kind     string     `json:"k"`
	Name     string     `json:"n"`
	Store    int        `json:"t,omitempty"`
	Settings string     `json:"s,omitempty"`
	Members  int        `json:"m"`
	Activity writtenAct `json:"a"`
}

// writtenAct has the four totals, waiting and held.
type writtenAct [6]int64

func actOf(a *Activity) writtenAct {
	total := func(n uint64) int64 { return int64(min(n, math.MaxInt64)) } //nolint:gosec // bounded
	return writtenAct{total(a.Passed), total(a.Denied), total(a.Failed), total(a.Other), a.Waiting, a.Held}
}

func (w writtenAct) activity() Activity {
	total := func(n int64) uint64 { return uint64(max(n, 0)) } //nolint:gosec // bounded
	return Activity{
		Passed: total(w[0]), Denied: total(w[1]), Failed: total(w[2]), Other: total(w[3]), Waiting: w[4], Held: w[5],
	}
}

// encodeProcess returns the document of a process, with as many of its mechanisms as fit.
func encodeProcess(p *Process) []byte {
	w := written{
		Service: p.Service, Host: p.Host, PID: p.PID, Up: p.Up.Milliseconds(), Version: p.Version, Go: p.Go,
		Stores: make([]writtenSt, 0, len(p.Stores)), Mechanisms: make([]writtenMec, 0, len(p.Mechanisms)),
	}
	for i := range p.Stores {
		s := &p.Stores[i]
		w.Stores = append(w.Stores, writtenSt{s.Kind, s.Down, s.Findings, actOf(&s.Calls)})
	}
	for _, r := range p.Rules[:min(len(p.Rules), maxRules)] {
		w.Rules = append(w.Rules, writtenRul{
			r.Source, r.Name, r.State, r.Since.Milliseconds(), r.Version, r.Revision, r.Hash, r.Errors,
		})
	}
	w.More = max(len(p.Mechanisms)-maxDescribed, 0)
	for i := range p.Mechanisms[:len(p.Mechanisms)-w.More] {
		m := &p.Mechanisms[i]
		w.Mechanisms = append(w.Mechanisms, writtenMec{m.Kind, m.Name, m.Store, m.Settings, m.Members, actOf(&m.Activity)})
	}
	for {
		text, err := json.Marshal(w)
		if err != nil {
			panic(err) // there is nothing in it that JSON has no text for
		}
		data := deflate(text)
		switch {
		case len(data) <= maxDocument:
			return data
		case len(w.Mechanisms) > 0:
			left := len(w.Mechanisms) * 3 / 4
			w.More += len(w.Mechanisms) - left
			w.Mechanisms = w.Mechanisms[:left]
		case len(w.Stores) > 1: // with the findings of many servers
			w.Stores = w.Stores[:len(w.Stores)/2]
		default:
			w.Stores[0].Findings = w.Stores[0].Findings[:len(w.Stores[0].Findings)/2]
		}
	}
}

// decodeProcess returns the process of a document, or one that says why there is none.
func decodeProcess(data []byte) Process {
	text, err := inflate(data)
	var w written
	if err == nil {
		err = json.Unmarshal(text, &w)
	}
	if err != nil {
		return Process{Unreadable: err.Error()}
	}
	p := Process{
		Service: w.Service, Host: w.Host, PID: w.PID,
		Up: time.Duration(w.Up) * time.Millisecond, Version: w.Version, Go: w.Go,
		More: w.More,
	}
	for _, r := range w.Rules {
		p.Rules = append(p.Rules, Rules{
			r.Source, r.Name, r.State, time.Duration(r.Since) * time.Millisecond, r.Version, r.Revision, r.Hash, r.Errors,
		})
	}
	for _, s := range w.Stores {
		p.Stores = append(p.Stores, Store{s.Kind, s.Down, s.Findings, s.Calls.activity()})
	}
	for _, m := range w.Mechanisms {
		if m.Store < 0 || m.Store >= len(p.Stores) {
			return Process{Unreadable: fmt.Sprintf("a mechanism of store %d of %d", m.Store, len(p.Stores))}
		}
		p.Mechanisms = append(p.Mechanisms, Mechanism{
			Kind: m.Kind, Name: m.Name, Store: m.Store, Settings: m.Settings, Members: m.Members,
			Activity: m.Activity.activity(),
		})
	}
	return p
}

// encodeHistory returns the slots and denied keys of the mechanisms of a process, of as many as fit.
// Keys are left out first: clients may have chosen them. Each mechanism begins with its kind, name
// and store, and every number is a varint.
func encodeHistory(p *Process) []byte {
	n, keys := min(len(p.Mechanisms), maxHistories), maxWrittenKeys
	for {
		var b []byte
		for i := range p.Mechanisms[:n] {
			b = appendMechanism(b, &p.Mechanisms[i], keys)
		}
		if data := deflate(b); len(data) <= maxHistory {
			return data
		}
		if keys > 0 {
			keys /= 2
		} else {
			n = n * 3 / 4
		}
	}
}

func appendMechanism(b []byte, m *Mechanism, keys int) []byte {
	b = appendText(appendText(b, m.Kind), m.Name)
	b = binary.AppendUvarint(b, uint64(m.Store))               //nolint:gosec // an index
	b = binary.AppendUvarint(b, uint64(m.Open.Milliseconds())) //nolint:gosec // not negative
	b = binary.AppendUvarint(b, uint64(len(m.Slots)))
	for j := range m.Slots {
		b = appendSlot(b, &m.Slots[j])
	}
	denied := m.DeniedKeys[:min(len(m.DeniedKeys), keys)]
	b = binary.AppendUvarint(b, uint64(len(denied)))
	for _, k := range denied {
		b = binary.AppendUvarint(binary.AppendUvarint(appendText(b, k.Key), k.Denials), k.Excess)
	}
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendSlot(b []byte, s *Slot) []byte {
	for _, n := range s.Counts {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.Waiting)), uint64(s.Held))
	for _, n := range s.Took {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// addHistory adds the slots and denied keys of a document of an age to the mechanisms of a process.
// Unreadable parts are left out.
func addHistory(p *Process, data []byte, age time.Duration) {
	raw, err := inflate(data)
	if err != nil {
		return
	}
	type id struct {
		kind, name string
		store      int
	}
	by := make(map[id]*Mechanism, len(p.Mechanisms))
	for i := range p.Mechanisms {
		m := &p.Mechanisms[i]
		by[id{m.Kind, m.Name, m.Store}] = m
	}
	r := reader{raw: raw}
	for len(r.raw) > 0 && !r.failed {
		of := id{r.text(), r.text(), int(r.number(1 << 20))}      //nolint:gosec // bounded
		open := time.Duration(r.number(1<<30)) * time.Millisecond //nolint:gosec // bounded
		slots := make([]Slot, 0, min(r.number(live.Slots+1), 1<<10))
		for range cap(slots) {
			slots = append(slots, r.slot())
		}
		var denied []DeniedKey
		for range r.number(maxWrittenKeys) {
			denied = append(denied, DeniedKey{r.text(), r.number(math.MaxUint64), r.number(math.MaxUint64)})
		}
		if m := by[of]; m != nil && !r.failed {
			m.Slots, m.Open, m.DeniedKeys = slots, open+age, denied
		}
	}
}

// reader reads varints and texts.
type reader struct {
	raw    []byte
	failed bool
}

// number returns the next number, or 0 if there is none up to most.
func (r *reader) number(most uint64) uint64 {
	n, length := binary.Uvarint(r.raw)
	if length <= 0 || n > most {
		r.failed, r.raw = true, nil
		return 0
	}
	r.raw = r.raw[length:]
	return n
}

func (r *reader) text() string {
	n := r.number(uint64(len(r.raw)))
	if n > uint64(len(r.raw)) {
		r.failed, r.raw = true, nil
		return ""
	}
	text := string(r.raw[:n])
	r.raw = r.raw[n:]
	return text
}

func (r *reader) slot() (s Slot) {
	for i := range s.Counts {
		s.Counts[i] = uint32(r.number(1<<32 - 1)) //nolint:gosec // bounded
	}
	s.Waiting, s.Held = uint32(r.number(1<<32-1)), uint32(r.number(1<<32-1)) //nolint:gosec // bounded
	for i := range s.Took {
		s.Took[i] = uint16(r.number(1<<16 - 1)) //nolint:gosec // bounded
	}
	return s
}

func deflate(raw []byte) []byte {
	var b bytes.Buffer
	b.WriteByte(format)
	w, _ := flate.NewWriter(&b, flate.BestSpeed) // the level is valid
	_, _ = w.Write(raw)                          // to memory
	_ = w.Close()
	return b.Bytes()
}

var errTooLarge = errors.New("it is too large")

func inflate(data []byte) ([]byte, error) {
	switch {
	case len(data) == 0:
		return nil, io.ErrUnexpectedEOF
	case data[0] != format:
		return nil, fmt.Errorf("it has format %d, and this version reads %d", data[0], format)
	}
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(data[1:])), maxInflated+1))
	if err == nil && len(raw) > maxInflated {
		err = errTooLarge
	}
	return raw, err
}
