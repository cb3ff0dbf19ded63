package redisfault

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Verdict classifies a server's refusal.
type Verdict int

// The verdicts.
const (
	// Outage is a server that takes no steps now, and may take them again.
	Outage Verdict = iota + 1
	// Misconfiguration is a server or a client with wrong settings: waiting does not end it.
	Misconfiguration
	// Full is a server without room for anything new.
	Full
	// Elsewhere is a step that another node would carry out, or this one after a moment.
	Elsewhere
	// CallersFault is a step that no server would carry out. The server works; its data or the
	// program is wrong.
	CallersFault
)

// Refusal is a kind of replies by which a server says that it has not carried out a command. A
// script that gets such a reply has not written before.
type Refusal struct {
	// Reply is the beginning of the replies: whole words.
	Reply   string
	Cause   store.Cause
	Verdict Verdict
	// Is completes "the server …", and Remedy is the action against it. Both are empty for refusals
	// that concern one step.
	Is, Remedy string
}

const (
	setPassword = "Set Username and Password in the client's options"
	useMaster   = "Connect to the master, or through Sentinel"
	useCluster  = "Use redis.NewClusterClient for a Cluster, and redis.NewClient for a single server"
	grantRights = "Grant the user what docs/redis.md lists"
)

// refusals are all refusals that servers document for commands of the store. Those of other
// commands, such as UNKILLABLE and NOGROUP, are not among them.
var refusals = []Refusal{
	{"NOAUTH", store.Authentication, Misconfiguration, "wants a password", setPassword},
	{"WRONGPASS", store.Authentication, Misconfiguration, "refuses the password", setPassword},
	{"ERR AUTH", store.Authentication, Misconfiguration, "refuses the password", setPassword},
	{"ERR invalid password", store.Authentication, Misconfiguration, "refuses the password", setPassword},
	{"ERR Client sent AUTH", store.Authentication, Misconfiguration, "has no password, and was sent one", setPassword},
	{"ERR Protocol error: unauthenticated", store.Authentication, Misconfiguration, "wants a password", setPassword},
	{"DENIED", store.Authentication, Misconfiguration, "is in protected mode", "Set a password on the server"},
	{"NOPERM", store.Permission, Misconfiguration, "refuses the user a right", grantRights},
	{"READONLY", store.ReadOnly, Misconfiguration, "is a replica, which takes no writes", useMaster},
	{"MASTERDOWN", store.ReadOnly, Misconfiguration, "is a replica without its master, and takes no commands", useMaster},
	{"MOVED", store.WrongServer, Misconfiguration, "is a node of a Cluster", useCluster}, // the client of a Cluster follows it
	{"ERR unknown command", store.WrongServer, Misconfiguration, "does not know a command of the store", "Use Redis 6.2 or later, or Valkey"},
	{"ERR This instance has cluster support disabled", store.WrongServer, Misconfiguration, "is no Cluster", useCluster},
	{"ERR SELECT is not allowed in cluster mode", store.WrongServer, Misconfiguration, "is a Cluster, which has one database", useCluster},
	{"ERR DB index is out of range", store.WrongServer, Misconfiguration, "has no such database", "Set DB in the client's options"},
	{"NOPROTO", store.WrongServer, Misconfiguration, "does not know the protocol", "Set Protocol in the client's options"},
	{
		"MISCONF", store.Persistence, Outage, "cannot save its data, and takes no writes until it can",
		"See the server's log for the reason, such as a full disk",
	},
	{
		"NOREPLICAS", store.Replication, Outage, "has fewer replicas in step than min-replicas-to-write, and takes no writes",
		"Repair the replicas, or set min-replicas-to-write lower",
	},
	{"LOADING", store.Starting, Outage, "is loading its data", "Wait until it has"},
	{
		"BUSY", store.ServerBusy, Outage, "has been running a script for longer than busy-reply-threshold",
		"Find out whose script it is, and end it with SCRIPT KILL",
	},
	{"CLUSTERDOWN", store.ClusterDown, Outage, "is of a Cluster in which a slot has no master", "Repair the Cluster: CLUSTER INFO says what is missing"},
	{"ERR max number of clients", store.ConnectionLimit, Outage, "takes no more connections", "Set maxclients higher, or the PoolSize of clients lower"},
	{"OOM", store.Full, Full, "is full, and takes nothing new", "Set maxmemory higher, or let less state live for less time"},
	{"TRYAGAIN", store.ClusterDown, Elsewhere, "", ""}, // a slot is moving
	{"ASK", store.ClusterDown, Elsewhere, "", ""},
	{"NOSCRIPT", store.OtherCause, Elsewhere, "", ""}, // its text is sent
	{"WRONGTYPE", store.OtherCause, CallersFault, "", ""},
	{"CROSSSLOT", store.OtherCause, CallersFault, "", ""},
}

// forbidden are parts of the errors of scripts that used a command, a key or a channel without the
// right to it, in the wording of newer and older servers.
var forbidden = []string{"ACL failure in script", "The user executing the script can't "}

// Find returns the refusal in an error of a client. ok is false if there is none, or it is unknown.
func Find(err error) (r Refusal, ok bool) {
	if !IsReply(err) {
		return r, false
	}
	for _, part := range forbidden {
		if strings.Contains(err.Error(), part) {
			return refusalOf("NOPERM"), true
		}
	}
	for _, r := range refusals {
		if Says(err, r.Reply) {
			return r, true
		}
	}
	return r, false
}

func refusalOf(reply string) (r Refusal) {
	for _, r = range refusals {
		if r.Reply == reply {
			break
		}
	}
	return r
}

// Says reports whether the server replied with an error that begins with reply. If a script got it,
// Redis before version 7 has it somewhere in the script's own error.
func Says(err error, reply string) bool {
	var answer redis.Error
	if err == nil || !errors.As(err, &answer) {
		return false
	}
	return begins(answer.Error(), reply) || begins(strings.TrimPrefix(answer.Error(), "ERR "), reply) || // as proxies spell it
		IsReply(err) && strings.Contains(err.Error(), ": -"+reply+" ")
}

// begins reports whether a text begins with these words: BUSY is not BUSYKEY.
func begins(text, words string) bool {
	rest, ok := strings.CutPrefix(text, words)
	return ok && (rest == "" || !isLetter(rest[0]))
}

func isLetter(c byte) bool { return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' }
