// Command lockkeeper shows operators what a store has: what is wrong, what passes and what is denied,
// who holds a lock and who waits, which outcomes are unknown; and it carries out the few actions that
// help. It needs a store's URL, and no process of the application. `lockkeeper help` lists the
// commands, and docs/command-line.md of the repository explains them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// The exit codes.
const (
	exitDone   = 0
	exitFound  = 1 // the command worked: it has found trouble, a difference or nothing, or has not acted
	exitFailed = 2
)

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // this command reports the errors itself
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// call is one run of a command.
type call struct {
	*command
	options
	args   []string // without flags
	stdin  *os.File
	stdout *os.File
	out    printer
	errs   printer // for questions and errors
	store  store.Store
}

// errFound ends a command with the exit code 1. The findings have been printed.
var errFound = errors.New("found")

// usageError is an error of the command line.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func misused(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

func run(ctx context.Context, args []string, stdin, stdout, stderr *os.File) int {
	c := &call{stdin: stdin, stdout: stdout, out: printer{stdout}, errs: printer{stderr}}
	err := c.run(ctx, args)
	var misuse usageError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errFound):
		return exitFound
	case errors.As(err, &misuse) && c.command != nil:
		c.errs.line("lockkeeper %s: %v", c.name, err)
		c.errs.line("usage: %s", c.usage())
	case c.command != nil:
		c.errs.line("lockkeeper %s: %v", c.name, err)
	default:
		c.errs.line("lockkeeper: %v", err)
	}
	return exitFailed
}

func (c *call) run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "help" || isHelp(args[0]) {
		return help(c.out, args)
	}
	rest, err := c.find(args)
	if err != nil {
		return err
	}
	err = c.parse(rest)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return help(c.out, append([]string{"help"}, c.words()...))
	case err != nil:
		return err
	case c.local:
		return c.do(ctx, c)
	}
	closeStore, err := c.openStore()
	if err != nil {
		return err
	}
	defer closeStore()
	return c.do(ctx, c)
}

func isHelp(arg string) bool {
	switch arg {
	case "-h", "-help", "--help":
		return true
	}
	return false
}

// find sets the command that the arguments begin with, and returns the other ones.
func (c *call) find(args []string) (rest []string, err error) {
	for _, cmd := range commands() {
		words := cmd.words()
		if len(args) >= len(words) && matches(words, args) {
			c.command = &cmd
			return args[len(words):], nil
		}
	}
	return nil, misused("unknown command %q; lockkeeper help lists them", args[:min(len(args), 2)])
}

func matches(words, args []string) bool {
	for i, word := range words {
		if args[i] != word {
			return false
		}
	}
	return true
}

// parse reads flags, which may stand before, between and after the arguments. All that follows a "--"
// is an argument.
func (c *call) parse(args []string) error {
	flags := c.flagSet(&c.options)
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			return wrapUsage(err)
		}
		rest := flags.Args()
		if ended := len(args) - len(rest); ended > 0 && args[ended-1] == "--" {
			c.args = append(c.args, rest...)
			break
		}
		if len(rest) > 0 {
			c.args = append(c.args, rest[0])
			rest = rest[1:]
		}
		args = rest
	}
	if n := len(c.args); n < c.least || n > c.most {
		return misused("it has %s", counted(n, "argument", "arguments"))
	}
	return c.check()
}

func wrapUsage(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	return usageError{err.Error()}
}

// flagSet returns the flags of a command.
func (cmd *command) flagSet(o *options) *flag.FlagSet {
	flags := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	for _, add := range cmd.flags {
		add(flags, o)
	}
	return flags
}
