package main

import (
	"context"
	"flag"
	"math"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// command is a command, of one word or two.
type command struct {
	name        string
	takes       string // its arguments
	least, most int    // their number
	about       string
	more        string // for its own help
	local       bool   // it needs no store
	flags       []func(*flag.FlagSet, *options)
	do          func(context.Context, *call) error

	// Of an action.
	kind operate.Kind
	seen string // the flag with what the operator has seen, "" if there is none
}

func (cmd *command) words() []string { return strings.Fields(cmd.name) }

func (cmd *command) usage() string {
	return strings.TrimRight("lockkeeper "+cmd.name+" [flags] "+cmd.takes, " ")
}

type flagSetter = func(*flag.FlagSet, *options)

const (
	keyHelp = "KEY is the key itself, or id: and the ID that ls prints. With - it is read from standard input, so " +
		"that it stands in no list of processes; one that begins with id: or - must be given so."
	literalHelp = "With - the key is read from standard input, so that it stands in no list of processes."
	stdinHelp   = "With - it is read from standard input."
	namesHelp   = "Without a name it lists the names of living processes."
)

// commands returns all commands, in the order of the help.
func commands() []command {
	look := []flagSetter{storeFlags}
	keys := []flagSetter{storeFlags, keyFlags}
	rules := slices.Clip([]flagSetter{storeFlags, nameFlag})
	act := func(more ...flagSetter) []flagSetter {
		return append([]flagSetter{storeFlags, keyFlags, actionFlags}, more...)
	}
	return []command{{
		name: "now", about: "say what is wrong", flags: look, do: now,
		more: "It takes up to 6 s, until processes have written what they did in the last minute. It exits with 1 " +
			"if anything is wrong.",
	}, {
		name: "top", takes: "[TEXT]", most: 1, flags: look, do: top,
		about: "show what passes and what is denied, as it happens",
		more: "TEXT is a part of names or kinds. On a terminal it refreshes every 2 s, and ends with q; otherwise " +
			"it prints one table.",
	}, {
		name: "locks ls", takes: "[NAME]", most: 1, flags: keys, do: locks.list,
		about: "list the locks that are in use", more: namesHelp,
	}, {
		name: "locks show", takes: "NAME KEY", least: 2, most: 2, flags: keys, do: locks.show,
		about: "show who holds a lock and who waits",
		more:  keyHelp + " It exits with 1 if the lock is not in use.",
	}, {
		name: "locks release", takes: "NAME KEY", least: 2, most: 2, flags: act(fenceFlag), do: locks.release,
		kind: operate.ReleaseLock, seen: "fence",
		about: "end a hold of a lock", more: keyHelp,
	}, {
		name: "permits ls", takes: "[NAME]", most: 1, flags: keys, do: permits.list,
		about: "list the permits that are held", more: namesHelp,
	}, {
		name: "permits show", takes: "NAME KEY", least: 2, most: 2, flags: keys, do: permits.show,
		about: "show who holds permits and who waits",
		more:  keyHelp + " It exits with 1 if none is in use.",
	}, {
		name: "permits release", takes: "NAME KEY", least: 2, most: 2, flags: act(fenceFlag), do: permits.release,
		kind: operate.ReleasePermits, seen: "fence",
		about: "take a permit back", more: keyHelp,
	}, {
		name: "limits show", takes: "[NAME [KEY]]", most: 2, flags: keys, do: showLimit,
		about: "show a limiter, or what a key has left",
		more: "It charges nothing. The limits are those of a living process; if they depend on the key, its own " +
			"processes alone know them. " + literalHelp + " " + namesHelp,
	}, {
		name: "limits reset", takes: "NAME KEY", least: 2, most: 2, flags: act(), do: resetLimit,
		kind:  operate.ResetLimit,
		about: "give a key all of its tokens, and end its hold", more: literalHelp,
	}, {
		name: "limits hold", takes: "NAME KEY", least: 2, most: 2, flags: act(holdFlag), do: holdLimit,
		kind:  operate.HoldLimit,
		about: "deny a key everything for a time", more: literalHelp,
	}, {
		name: "limits denied", takes: "NAME", least: 1, most: 1, flags: look, do: deniedKeys,
		about: "list the keys that are denied most",
		more: "It has the IDs of keys, or the keys of processes that show them (presence.ShowKeys). The numbers " +
			"are estimates.",
	}, {
		name: "operations ls", takes: "[GUARD]", most: 1, flags: look, do: listOperations,
		about: "list the operations whose outcome is unknown", more: namesHelp,
	}, {
		name: "operations show", takes: "GUARD ID", least: 2, most: 2, flags: append(look, scopeFlags), do: showOperation,
		about: "show the record of an operation",
		more: "With -key it is looked up by scope and key, as the guard was given them, and by the guard's secret " +
			"if it has one; with - the key is read from standard input. It exits with 1 if there is no record.",
	}, {
		name: "operations resolve", takes: "GUARD ID", least: 2, most: 2, flags: act(versionFlag, outcomeFlags),
		do: resolveOperation, kind: operate.ResolveOperation, seen: "version",
		about: "settle an operation whose outcome is unknown",
		more:  "Only a process that has the guard can record an answer: use its console, or guard.Happened.",
	}, {
		name: "tasks ls", takes: "[QUEUE]", most: 1, flags: keys, do: listTasks,
		about: "list delayed tasks, buried ones first", more: namesHelp,
	}, {
		name: "tasks cancel", takes: "QUEUE KEY", least: 2, most: 2, flags: act(taskFlag), do: actOnTask,
		kind: operate.CancelTask, seen: "task",
		about: "remove a task", more: keyHelp,
	}, {
		name: "tasks revive", takes: "QUEUE KEY", least: 2, most: 2, flags: act(taskFlag), do: actOnTask,
		kind: operate.ReviveTask, seen: "task",
		about: "run a buried task again", more: keyHelp,
	}, {
		name: "rules check", takes: "FILE...", least: 1, most: math.MaxInt, local: true,
		flags: []flagSetter{againstFlag, readFlags}, do: checkRules,
		about: "find all errors of documents with rules",
		more: stdinHelp + " It exits with 1 if there are any. With -against, a rule for a mechanism that no living " +
			"process has is one.",
	}, {
		name: "rules diff", takes: "FILE", least: 1, most: 1, flags: rules, do: diffRules,
		about: "compare the document with rules in the store with a file",
		more: stdinHelp + " It exits with 1 if they differ. Lines may have keys of clients, as those of both " +
			"documents do.",
	}, {
		name: "rules push", takes: "FILE", least: 1, most: 1, do: pushRules,
		flags: append(rules, seenFlag, actionFlags), kind: operate.PushRules, seen: "seen",
		about: "put a document with rules into the store",
		more:  stdinHelp + " It exits with 1, and changes nothing, if the document has errors, or the store another version.",
	}, {
		name: "rules show", flags: rules, do: showRules, about: "print the document with rules in the store",
		more: "Its version stands on standard error. The document may have keys of clients. It exits with 1 if there " +
			"is none.",
	}, {
		name: "rules history", flags: rules, do: rulesHistory, about: "list the last 20 versions of the document",
	}, {
		name: "rules rollback", takes: "VERSION", least: 1, most: 1, do: rollbackRules,
		flags: append(rules, seenFlag, actionFlags), kind: operate.RollbackRules,
		about: "push an earlier version of the document again",
		more: "Without -seen it is in the place of the version that the store has when the command begins. It exits with 1 " +
			"if the store does not have VERSION.",
	}, {
		name: "processes", flags: look, do: processes,
		about: "list the processes that show themselves (presence.Start)",
	}, {
		name: "log", flags: look, do: showLog,
		about: "list the last actions of operators, of pages and of commands",
	}, {
		name: "doctor", flags: append(look, acksFlag), do: doctor,
		about: "find settings of the server that weaken promises",
		more: "It exits with 1 if it finds any, and with 2 if the server cannot be reached. Run it where the " +
			"services run: it measures the distance, and compares clocks.",
	}, {
		name: "version", local: true, about: "print the version",
		do: func(_ context.Context, c *call) error {
			c.out.line("lockkeeper %s", core.Version)
			return nil
		},
	}}
}
