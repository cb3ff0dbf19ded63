package main

import (
	"flag"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// options are the values of all flags.
type options struct {
	url, prefix, schema         string
	storeSecretFile, secretFile string
	timeout                     time.Duration
	acks                        int

	json, showKeys bool

	why, as string
	yes     bool

	fence, version, task string
	hold                 time.Duration
	outcome              string
	status               int
	byKey                bool
	scope                string

	rulesName, seenRules, against string
}

// environment is the variable with the store's URL, which hides its password from lists of processes.
const environment = "LOCKKEEPER_STORE"

func storeFlags(f *flag.FlagSet, o *options) {
	f.StringVar(&o.url, "store", "", "`URL` of the store; without it that of "+environment)
	readFlags(f, o)
}

// readFlags are the flags of a store without its URL.
func readFlags(f *flag.FlagSet, o *options) {
	f.StringVar(&o.prefix, "prefix", "lk", "`prefix` of the keys on Redis, as of redisstore.WithPrefix")
	f.StringVar(&o.schema, "schema", "lk", "`schema` on PostgreSQL, as of pgstore.WithSchema")
	f.StringVar(&o.storeSecretFile, "store-secret-file", "", "`file` with the secret of the store's WithSecret")
	f.DurationVar(&o.timeout, "timeout", 0, "`time` for a reply; 2s if not set, and for doctor the store's default")
	f.BoolVar(&o.json, "json", false, "print JSON")
}

func keyFlags(f *flag.FlagSet, o *options) {
	f.BoolVar(&o.showKeys, "show-keys", false, "print keys, which may be personal data, beside their IDs")
}

func actionFlags(f *flag.FlagSet, o *options) {
	f.StringVar(&o.why, "why", "", "`reason`, for the log: 3 to 500 characters; required")
	f.StringVar(&o.as, "as", "", "`name` of the operator, for the log; user@host if not set")
	f.BoolVar(&o.yes, "yes", false, "do not ask; required unless standard input is a terminal")
}

func fenceFlag(f *flag.FlagSet, o *options) {
	f.StringVar(&o.fence, "fence", "", "`fence` of the hold that you have seen")
}

func versionFlag(f *flag.FlagSet, o *options) {
	f.StringVar(&o.version, "version", "", "`version` of the record that you have seen")
}

func taskFlag(f *flag.FlagSet, o *options) {
	f.StringVar(&o.task, "task", "", "`ID` of the task that you have seen")
}

func holdFlag(f *flag.FlagSet, o *options) {
	f.DurationVar(&o.hold, "for", 10*time.Minute, "`time` of the hold, from 1ms to 720h")
}

func outcomeFlags(f *flag.FlagSet, o *options) {
	f.StringVar(&o.outcome, "outcome", "", "`outcome`: never-happened, or answer-lost if it happened; required")
	f.IntVar(&o.status, "status", 200, "`status` that was answered, of answer-lost")
}

func scopeFlags(f *flag.FlagSet, o *options) {
	f.BoolVar(&o.byKey, "key", false, "the argument is the key of the operation, not its ID")
	f.StringVar(&o.scope, "scope", "", "`scope` of the key")
	f.StringVar(&o.secretFile, "secret-file", "", "`file` with the secret of guard.WithSecret")
}

func againstFlag(f *flag.FlagSet, o *options) {
	f.StringVar(&o.against, "against", "", "`URL` of a store: its living processes must have the mechanisms; env for that of "+
		environment)
}

func nameFlag(f *flag.FlagSet, o *options) {
	f.StringVar(&o.rulesName, "name", "", "`name` of the document, as of rules.Store; required")
}

func seenFlag(f *flag.FlagSet, o *options) {
	f.StringVar(&o.seenRules, "seen", "", "`version` in the store that you have seen; 0 for none")
}

func acksFlag(f *flag.FlagSet, o *options) {
	f.IntVar(&o.acks, "replica-acks", 0,
		"`number` of replicas that the services' stores wait for (redisstore.WithReplicaAcks)")
}

// operator returns the name for the log of actions.
func (o *options) operator() string {
	if o.as != "" {
		return o.as
	}
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}

// check returns an error for options that no store is needed to refuse.
func (c *call) check() error {
	if c.kind == "" {
		return nil
	}
	if c.why == "" {
		return misused("say -why")
	}
	if err := operate.CheckWhy(c.why); err != nil {
		return usageError{err.Error()}
	}
	if c.seen != "" && c.yes && c.seenValue() == "" {
		return misused("-yes needs -%s, as you have seen it", c.seen)
	}
	if !c.yes && (!isTerminal(c.stdin) || c.keyFromStdin()) {
		return misused("standard input is no terminal to ask on: say -yes")
	}
	return nil
}

// seenValue returns what the operator has seen, by the flag that has it.
func (c *call) seenValue() string {
	return map[string]string{"fence": c.fence, "version": c.version, "task": c.task, "seen": c.seenRules}[c.seen]
}

// readSecret returns the content of a file without the line break at its end.
func readSecret(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if text = trimLine(text); len(text) == 0 {
		return nil, fmt.Errorf("%s is empty", file)
	}
	return text, nil
}
