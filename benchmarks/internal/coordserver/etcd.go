package coordserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
)

// etcd is the program of an etcd server.
type etcd struct {
	peer int // the port for other members, of which there are none
}

// StartEtcd starts an etcd server with its default settings, except that it compacts its history. The
// caller has to stop it. It returns an error that matches [ErrNotInstalled] if there is no etcd in the PATH, and
// another one if it does not reply within a minute.
func StartEtcd(ctx context.Context) (*Server, error) {
	if !HasEtcd() {
		return nil, fmt.Errorf("etcd: %w", ErrNotInstalled)
	}
	peer, err := redisserver.FreePort()
	if err != nil {
		return nil, err
	}
	return start(ctx, etcd{peer})
}

// HasEtcd reports whether etcd is installed.
func HasEtcd() bool {
	_, err := exec.LookPath("etcd")
	return err == nil
}

func (e etcd) command(dir string, port int) (*exec.Cmd, error) {
	clients, peers := fmt.Sprintf("http://127.0.0.1:%d", port), fmt.Sprintf("http://127.0.0.1:%d", e.peer)
	return exec.Command("etcd", "--name", "m", "--data-dir", filepath.Join(dir, "data"), "--log-level", "error",
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "m="+peers,
		"--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"), nil
}

// counters returns the server's metrics, by their names and labels.
func (e etcd) counters(ctx context.Context, addr string) (map[string]string, error) {
	health, err := get(ctx, "http://"+addr+"/health")
	if err != nil {
		return nil, err
	}
	if !strings.Contains(health, `"true"`) { // it knows no leader
		return nil, errors.New(strings.TrimSpace(health))
	}
	text, err := get(ctx, "http://"+addr+"/metrics")
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	for line := range strings.Lines(text) {
		if at := strings.LastIndexByte(line, ' '); at > 0 && line[0] != '#' {
			all[line[:at]] = strings.TrimSpace(line[at:])
		}
	}
	return all, nil
}

func (e etcd) version(ctx context.Context, addr string) (string, error) {
	text, err := get(ctx, "http://"+addr+"/version")
	if err != nil {
		return "", err
	}
	var reply struct {
		Server string `json:"etcdserver"`
	}
	return reply.Server, json.Unmarshal([]byte(text), &reply)
}

// get returns the body of a page.
func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	return string(text), err
}
