package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

var errNotInstalled = errors.New("not installed")

// start starts the server of a store, with an address and a directory of its own, and returns what
// ends it. Its error matches errNotInstalled if there is none. The store in memory needs none.
func start(ctx context.Context, kind string) (addr string, stop func(), err error) {
	if kind == "memory" {
		return "", func() {}, nil
	}
	prepare := map[string]func(ctx context.Context, dir string, port int) (*exec.Cmd, error){
		"redis": prepareRedis, "postgres": preparePostgres, "etcd": prepareEtcd, "zookeeper": prepareZooKeeper,
	}[kind]
	dir, err := os.MkdirTemp("", "lockkeeper-stores-")
	if err != nil {
		return "", nil, err
	}
	remove := func() { // the last processes of a server may still write
		for range 100 {
			if os.RemoveAll(dir) == nil {
				return
			}
			<-time.After(20 * time.Millisecond)
		}
	}
	port, err := freePort()
	var cmd *exec.Cmd
	if err == nil {
		cmd, err = prepare(ctx, dir, port)
	}
	if err != nil {
		remove()
		return "", nil, err
	}
	var output bytes.Buffer // to be read when the server has ended
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, &output, &output, time.Second
	if err := cmd.Start(); err != nil {
		remove()
		return "", nil, err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	stop = func() {
		_ = cmd.Process.Kill()
		<-exited
		remove()
	}
	addr = "127.0.0.1:" + strconv.Itoa(port)
	for {
		err := replies(ctx, kind, addr)
		if err == nil {
			return addr, stop, nil
		}
		select {
		case <-exited:
			remove()
			return "", nil, fmt.Errorf("the server has exited: %s", bytes.TrimSpace(output.Bytes()))
		case <-ctx.Done():
			stop()
			return "", nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freePort returns a free port of the loopback interface.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// installed returns the path of a program, or an error that matches errNotInstalled.
func installed(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: no %s in the PATH", errNotInstalled, name)
	}
	return path, nil
}

func prepareRedis(_ context.Context, dir string, port int) (*exec.Cmd, error) {
	path, err := installed("redis-server")
	if err != nil {
		return nil, err
	}
	return exec.Command(path, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--appendonly", "yes"), nil //nolint:gosec // a server
}

func prepareEtcd(_ context.Context, dir string, port int) (*exec.Cmd, error) {
	path, err := installed("etcd")
	if err != nil {
		return nil, err
	}
	other, err := freePort()
	if err != nil {
		return nil, err
	}
	clients, peers := fmt.Sprintf("http://127.0.0.1:%d", port), fmt.Sprintf("http://127.0.0.1:%d", other)
	return exec.Command(path, "--name", "m", "--data-dir", filepath.Join(dir, "data"), "--log-level", "error", //nolint:gosec // a server
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "m="+peers), nil
}

// jar is where Debian's package zookeeper has the server.
const jar = "/usr/share/java/zookeeper.jar"

func prepareZooKeeper(_ context.Context, dir string, port int) (*exec.Cmd, error) {
	java, err := installed("java")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(jar); err != nil {
		return nil, fmt.Errorf("%w: no %s", errNotInstalled, jar)
	}
	config := filepath.Join(dir, "zoo.cfg")
	// A session of 2.5 s should have at least five ticks.
	text := fmt.Sprintf("dataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\ntickTime=500\nadmin.enableServer=false\n", filepath.Join(dir, "data"), port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return exec.Command(java, "-Xmx256m", "-cp", jar, "org.apache.zookeeper.server.quorum.QuorumPeerMain", config), nil //nolint:gosec // a server
}

// preparePostgres makes a database.
func preparePostgres(ctx context.Context, dir string, port int) (*exec.Cmd, error) {
	initdb, err := installed("initdb")
	if err != nil {
		found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // where Debian has them
		if len(found) == 0 {
			return nil, err
		}
		initdb = found[len(found)-1]
	}
	if initdb, err = filepath.EvalSymlinks(initdb); err != nil {
		return nil, err
	}
	as := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 { // which PostgreSQL refuses to be run by
		u, err := user.Lookup("postgres")
		if err != nil {
			return nil, err
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32)
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, int(uid), int(gid)); err != nil { //nolint:gosec // of a user
			return nil, err
		}
	}
	data := filepath.Join(dir, "data")
	initial := exec.CommandContext(ctx, initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C") //nolint:gosec // a server
	initial.Dir, initial.SysProcAttr = dir, as
	if text, err := initial.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(text))
	}
	cmd := exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-p", strconv.Itoa(port), //nolint:gosec // a server
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
	cmd.SysProcAttr = as
	return cmd, nil
}
