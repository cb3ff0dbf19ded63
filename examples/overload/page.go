package main

import (
	"context"
	"embed"
	"encoding/json"
	"log"
	"net/http"
	"slices"
	"sync"

	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

//go:embed page
var page embed.FS

// desk is the page's server. One show plays at a time, and ends with its last act.
type desk struct {
	show *show
	life context.Context // of the program

	mu   sync.Mutex
	stop context.CancelFunc // of the show that plays; nil if none has
	done chan struct{}      // is closed when it has ended
}

func (d *desk) handle(mux *http.ServeMux) error {
	mux.HandleFunc("GET /state", d.state)
	mux.HandleFunc("POST /play/{act}", d.play)
	return demo.Page(mux, page)
}

func (d *desk) state(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	scene := d.show.scene
	_ = json.NewEncoder(w).Encode(struct { // the browser asks again
		state
		Possible float64 `json:"possible"` // requests a second that can be served
		Load     float64 `json:"load"`     // requests a second that come
		Target   int64   `json:"target"`   // ms
		Patience int64   `json:"patience"` // ms
	}{d.show.current(), scene.possible(), scene.possible() * scene.load, scene.target.Milliseconds(), scene.patience.Milliseconds()})
}

// play begins an act, or all of them, in place of what plays.
func (d *desk) play(w http.ResponseWriter, r *http.Request) {
	chosen, name := acts(), r.PathValue("act")
	if name != "all" {
		chosen = slices.DeleteFunc(chosen, func(a act) bool { return a.name != name })
	}
	if len(chosen) == 0 {
		http.Error(w, "there is no such act", http.StatusNotFound)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wait()
	ctx, stop := context.WithCancel(d.life)
	done := make(chan struct{})
	d.stop, d.done = stop, done
	go func() {
		defer close(done)
		defer stop()
		if err := d.show.play(ctx, chosen); err != nil && ctx.Err() == nil {
			log.Println(err)
		}
	}()
	w.WriteHeader(http.StatusNoContent)
}

// wait ends the show that plays. The caller holds mu.
func (d *desk) wait() {
	if d.stop != nil {
		d.stop()
		<-d.done
	}
}

// end ends the show that plays.
func (d *desk) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wait()
}
