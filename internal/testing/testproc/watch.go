// Package testproc starts servers for tests, and leaves nothing of them behind when the test binary
// has ended, also if it was killed.
package testproc

import "os/exec"

// watch runs a program, and sends a signal to it at the end of the input, unless it has ended. What
// ends the test binary, such as the end of a session, must not end the watcher before.
const watch = `trap '' HUP INT QUIT TERM; exec 3<&0 </dev/null; signal=$1; shift; "$@" 3<&- & pid=$!
{ cat <&3 >/dev/null; kill -"$signal" $pid; } & watcher=$!
wait $pid; code=$?; kill -KILL $watcher; exit $code`

// Watched returns a command that runs a program until its standard input ends, which is a pipe of the
// test binary that the caller keeps open. The program then gets a signal, such as "QUIT".
func Watched(signal, program string, args ...string) *exec.Cmd {
	return exec.Command("/bin/sh", append([]string{"-c", watch, "watch", signal, program}, args...)...) //nolint:gosec // for tests
}
