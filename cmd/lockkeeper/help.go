package main

import (
	"flag"
	"strings"
)

// help prints the help of a command, of a group of commands, or of all. The first argument is "help",
// or there is none.
func help(out printer, args []string) error {
	if len(args) < 2 {
		overview(out)
		return nil
	}
	name := strings.Join(args[1:], " ")
	shown := 0
	for _, cmd := range commands() {
		if cmd.name == name || strings.HasPrefix(cmd.name, name+" ") {
			if shown++; shown > 1 {
				out.line("")
			}
			cmd.help(out)
		}
	}
	if shown == 0 {
		return misused("no command is called %q; lockkeeper help lists them", name)
	}
	return nil
}

func overview(out printer) {
	out.line("lockkeeper shows what a store has, and carries out the actions of operators.")
	out.line("")
	var t table
	for _, cmd := range commands() {
		t.add("  "+strings.TrimRight(cmd.name+" "+cmd.takes, " "), cmd.about)
	}
	t.print(out)
	out.line("")
	for _, text := range []string{
		"The store is the URL of -store or of " + environment + ":",
		"  redis://user:password@host:6379/0     rediss:// with TLS",
		"  redis+cluster://host:6379?addr=host2:6379",
		"  redis+sentinel://host:26379/0?master_name=shop&addr=host2:26379",
		"  postgres://user:password@host:5432/database",
		"",
		"Exit codes: 0 done; 1 doctor or now found something, an action changed nothing,",
		"or there is no such object; 2 wrong usage, or the store failed.",
		"",
		"lockkeeper help COMMAND explains a command and its flags.",
	} {
		out.line("%s", text)
	}
}

// width is that of help, in columns.
const width = 80

func (cmd *command) help(out printer) {
	out.line("usage: %s", cmd.usage())
	out.line("")
	about := strings.ToUpper(cmd.about[:1]) + cmd.about[1:] + "."
	for _, line := range wrap(strings.Join([]string{about, cmd.kind.Effect(), cmd.more}, " "), width) {
		out.line("%s", line)
	}
	cmd.flagSet(new(options)).VisitAll(func(f *flag.Flag) { helpFlag(out, f) })
}

func helpFlag(out printer, f *flag.Flag) {
	value, about := flag.UnquoteUsage(f)
	out.line("  %s", strings.TrimRight("-"+f.Name+" "+value, " "))
	if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" {
		about += " (" + f.DefValue + " if not set)"
	}
	for _, line := range wrap(about, width-6) {
		out.line("      %s", line)
	}
}

// wrap breaks a text into lines of so many columns.
func wrap(text string, columns int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > columns {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimLeft(line+" "+word, " ")
	}
	return append(lines, line)
}
