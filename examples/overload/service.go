package main

import (
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// The routes.
const (
	ordersPath = "/orders"
	searchPath = "/search"
)

// scene is a service, and its clients.
type scene struct {
	workers     int
	least, most time.Duration // of the work on a request, any time between them
	patience    time.Duration // of clients
	target      time.Duration // the slowest answer that is still of use
	load        float64       // how many times as many requests as the workers can serve
}

var usual = scene{
	workers: 10, least: 30 * time.Millisecond, most: 70 * time.Millisecond,
	patience: 500 * time.Millisecond, target: 250 * time.Millisecond, load: 3,
}

// possible is how many requests the workers can serve in a second.
func (s scene) possible() float64 {
	return float64(s.workers) / ((s.least + s.most) / 2).Seconds()
}

// bound is how many requests may be in the service at once, so that each is answered within the
// target, by Little's law: a second's requests × the time that each stays.
func (s scene) bound() int { return int(s.possible() * s.target.Seconds()) }

// floor is what the service may safely run at once, and ceiling more than it ever could.
func (s scene) floor() int   { return 2 * s.workers }
func (s scene) ceiling() int { return 50 * s.workers }

// service is a process that serves requests. It is an own one in each phase.
type service struct {
	scene
	idle   chan struct{} // has a value for each worker without work
	killed chan struct{} // is closed when the process ends
	memory *memstore.Store
	gate   *semaphore.Semaphore // nil if there is none
	server *http.Server
	served chan error
	url    string
}

// start starts a service on a free port, behind the gate of an act.
func start(s scene, a act) (v *service, err error) {
	v = &service{scene: s, idle: make(chan struct{}, s.workers), killed: make(chan struct{}), memory: memstore.New(), served: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.memory.Close())
		}
	}()
	for range s.workers {
		v.idle <- struct{}{}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+ordersPath, v.work)
	mux.HandleFunc("GET "+searchPath, v.work)
	mux.HandleFunc("GET /ready", func(http.ResponseWriter, *http.Request) {})
	handler := http.Handler(mux)
	if a.gate != nil {
		if v.gate, err = a.gate(v); err != nil {
			return nil, err
		}
		handler = behind(v.gate, a.options...)(mux)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	v.url = "http://" + listener.Addr().String()
	v.server = &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { v.served <- v.server.Serve(listener) }()
	return v, nil
}

// work waits for a worker, and keeps it busy for a time, whether or not its client is still there.
// A database does not notice either that no client waits for its answer.
func (v *service) work(w http.ResponseWriter, _ *http.Request) {
	select {
	case <-v.idle:
	case <-v.killed:
		return
	}
	time.Sleep(v.least + rand.N(v.most-v.least+1)) //nolint:forbidigo,gosec // the work; no secret
	v.idle <- struct{}{}
	w.WriteHeader(http.StatusOK)
}

// capacity is the present one of the gate, 0 if there is none.
func (v *service) capacity() int {
	if v.gate == nil {
		return 0
	}
	n, _ := v.gate.Capacity("global") // it is a key
	return n
}

// kill ends the process, and with it what waits in it.
func (v *service) kill() error {
	close(v.killed)
	err := v.server.Close()
	if served := <-v.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if v.gate != nil {
		err = errors.Join(err, v.gate.Close())
	}
	return errors.Join(err, v.memory.Close())
}
