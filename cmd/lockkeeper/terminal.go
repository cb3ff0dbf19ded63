package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// stty asks the terminal, or sets it, by the command of that name: a package for terminals would be a
// dependency for these few lines. Where there is none, nothing is a terminal.
func stty(terminal *os.File, args ...string) (string, error) {
	cmd := exec.Command("stty", args...)
	cmd.Stdin = terminal
	text, err := cmd.Output()
	return strings.TrimSpace(string(text)), err
}

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	_, err = stty(f, "-g")
	return err == nil
}

// sizeOf returns the size of a terminal: 80 columns of 24 lines if it does not say.
func sizeOf(terminal *os.File) (columns, lines int) {
	text, _ := stty(terminal, "size")
	if _, err := fmt.Sscan(text, &lines, &columns); err != nil || lines < 1 || columns < 1 {
		lines, _ = strconv.Atoi(os.Getenv("LINES"))
		columns, _ = strconv.Atoi(os.Getenv("COLUMNS"))
	}
	if lines < 1 || columns < 1 {
		return 80, 24
	}
	return columns, lines
}

// screen is a terminal that shows frames.
type screen struct {
	keys, shows *os.File
	saved       string // its settings
}

// takeScreen has a terminal report each key at once, and show frames instead of what it shows.
func takeScreen(keys, shows *os.File) (*screen, error) {
	saved, err := stty(keys, "-g")
	if err != nil {
		return nil, err
	}
	if _, err := stty(keys, "-icanon", "-echo", "min", "1", "time", "0"); err != nil {
		return nil, err
	}
	_, _ = fmt.Fprint(shows, "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J") // another screen, no cursor
	return &screen{keys, shows, saved}, nil
}

// restore ends what takeScreen has begun.
func (s *screen) restore() {
	_, _ = fmt.Fprint(s.shows, "\x1b[?25h\x1b[?1049l")
	_, _ = stty(s.keys, s.saved)
}

// show replaces the frame. Its lines are printable, and no longer than the terminal's.
func (s *screen) show(lines []string) {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(printable(line) + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, _ = s.shows.WriteString(b.String())
}

// untilQuit returns a context that ends when q is pressed.
func (s *screen) untilQuit(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		for key := make([]byte, 1); ; {
			if n, err := s.keys.Read(key); n == 0 || err != nil || key[0] == 'q' || key[0] == 'Q' {
				return
			}
		}
	}()
	return ctx, cancel
}
