// Overload has a service of ten workers, and three times as many requests as they can serve, half of
// them of low priority. Clients leave after half a second; the work is done all the same. It shows
// what clients get in time: without a gate, behind a fixed bound, with tiers, with a capacity that
// adapts, and while the bound is changed by an edit of rules.yaml. Run it, open the address that it
// prints, and press a button; or have it print rows, and end by itself:
//
//	go run ./examples/overload
//	go run ./examples/overload -plain
//
// gate.go is the part to copy. service.go pretends to work, and load.go has the clients, which use
// HTTP on the loopback interface.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

func main() { demo.Main(program{usual}) }

// program runs the phases on a scene.
type program struct{ scene scene }

// The bounds of -phase. Each phase needs a second to settle, and connections of clients that have
// left stay until it ends.
const (
	leastPhase = 2 * time.Second
	mostPhase  = time.Minute
)

// Run runs the program until ctx ends, or with -plain until all phases have.
func (p program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("overload", flag.ContinueOnError)
	addr := demo.AddrFlag(flags)
	length := flags.Duration("phase", 10*time.Second, "how `long` each phase lasts: whole seconds, from 2s to 1m")
	plain := flags.Bool("plain", false, "print a row a second in place of the page, and end after the last phase")
	return demo.Parse(flags, args, stderr, func() error {
		if *length < leastPhase || *length > mostPhase || *length%time.Second != 0 {
			return errors.New("-phase: want whole seconds, from 2s to 1m")
		}
		show := &show{scene: p.scene, seconds: int(*length / time.Second)}
		if *plain {
			return show.print(ctx, stdout)
		}
		desk := &desk{show: show, life: ctx}
		mux := http.NewServeMux()
		if err := desk.handle(mux); err != nil {
			return err
		}
		defer desk.end()
		// Other sites must not start a load through the browser of a visitor.
		return demo.Serve(ctx, *addr, http.NewCrossOriginProtection().Handler(mux), stdout, "")
	})
}
