package pgserver

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A server keeps what it has committed, at the same address, however it was ended.
func TestServer(t *testing.T) {
	if _, err := programs(); err != nil {
		if os.Getenv("LOCKKEEPER_REQUIRE_POSTGRES") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	ctx := context.Background()
	s, err := Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	query := func(sql string) (text string) {
		t.Helper()
		conn, err := pgx.Connect(ctx, s.DSN())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(ctx) }()
		if err := conn.QueryRow(ctx, sql).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	if fsync := query("SHOW fsync"); fsync != "on" {
		t.Errorf("fsync is %s", fsync)
	}
	query("SELECT lo_from_bytea(42, 'kept')::text")
	for name, end := range map[string]func(){"killed": s.Kill, "shut down": s.Shutdown, "still running": func() {}} {
		end()
		if err := s.Restart(ctx); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if kept := query("SELECT convert_from(lo_get(42), 'UTF8')"); kept != "kept" {
			t.Errorf("%s: it has %q", name, kept)
		}
	}
	dir := s.dir
	s.Stop()
	s.Stop()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("it has left its directory: %v", err)
	}
	if s.Process() != nil {
		t.Error("it has a process")
	}
}

func TestWrongSettings(t *testing.T) {
	if _, err := programs(); err != nil {
		t.Skip(err)
	}
	if s, err := Start(context.Background(), "shared_buffers=none"); err == nil {
		s.Stop()
		t.Error("it has started")
	}
}
