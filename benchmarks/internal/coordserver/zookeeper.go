package coordserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// jar is where Debian's package zookeeper has the server. Its manifest names what it needs.
const jar = "/usr/share/java/zookeeper.jar"

// Tick is the tick of ZooKeeper servers: sessions last from two of them.
const Tick = 500 * time.Millisecond

// zooKeeper is the program of a ZooKeeper server.
type zooKeeper struct{}

// StartZooKeeper starts a ZooKeeper server with its default settings, except those of [Tick], and of
// sessions, which last for up to a minute. The caller has to stop it. It returns an error that matches [ErrNotInstalled] if
// there is no Java runtime in the PATH, or no ZooKeeper where Debian has it, and another one if the server does not
// reply within a minute.
func StartZooKeeper(ctx context.Context) (*Server, error) {
	if !HasZooKeeper() {
		return nil, fmt.Errorf("ZooKeeper: %w", ErrNotInstalled)
	}
	return start(ctx, zooKeeper{})
}

// HasZooKeeper reports whether a Java runtime and ZooKeeper are installed.
func HasZooKeeper() bool {
	_, noJava := exec.LookPath("java")
	_, noServer := os.Stat(jar)
	return noJava == nil && noServer == nil
}

// logging has warnings and errors on the output only.
const logging = `log4j.rootLogger=WARN, CONSOLE
log4j.appender.CONSOLE=org.apache.log4j.ConsoleAppender
log4j.appender.CONSOLE.layout=org.apache.log4j.PatternLayout
log4j.appender.CONSOLE.layout.ConversionPattern=%d{ISO8601} %-5p %c{1}: %m%n
`

func (z zooKeeper) command(dir string, port int) (*exec.Cmd, error) {
	for name, text := range map[string]string{
		"log4j.properties": logging,
		"zoo.cfg": fmt.Sprintf("dataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\ntickTime=%d\nmaxSessionTimeout=60000\n"+
			"maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=mntr\n", filepath.Join(dir, "data"), port, Tick.Milliseconds()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return exec.Command("java", "-Xmx256m", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true", "-cp", dir+":"+jar,
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(dir, "zoo.cfg")), nil
}

// counters returns the reply to the four-letter word mntr.
func (z zooKeeper) counters(ctx context.Context, addr string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, "mntr"); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			all[name] = value
		}
	}
	if all["zk_version"] == "" { // it is there, and serves no requests yet
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	return all, nil
}

func (z zooKeeper) version(ctx context.Context, addr string) (string, error) {
	all, err := z.counters(ctx, addr)
	version, _, _ := strings.Cut(all["zk_version"], "-") // of "3.8.0-Unknown, built on 2023-02-27 18:59 UTC"
	return version, err
}
