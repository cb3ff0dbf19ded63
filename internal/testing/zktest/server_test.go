package zktest_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/zktest"
)

func TestMain(m *testing.M) { zktest.Main(m) }

// A server survives a crash at its address, and a session can be ended by another client.
func TestServer(t *testing.T) {
	s := zktest.Shared(t)
	session, err := zktest.Connect(s.Addr(), time.Minute)
	if err != nil || session.Length != time.Minute {
		t.Fatal(session, err)
	}
	s.Kill()
	s.Restart()
	again, err := zktest.Resume(s.Addr(), session.ID, session.Password)
	if err != nil || again.ID != session.ID {
		t.Fatal(again, err)
	}
	if err := again.End(); err != nil {
		t.Fatal(err)
	}
	if again, err := zktest.Resume(s.Addr(), session.ID, session.Password); err == nil {
		t.Errorf("resumed session %x after its end", again.ID)
	}
}

// Another one of three leads when the leader was killed.
func TestThree(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three servers")
	}
	servers := zktest.StartThree(t)
	leader, i := zktest.Leader(t, servers)
	leader.Kill()
	next, j := zktest.Leader(t, servers)
	if next == leader || i == j {
		t.Error("a server leads after its end")
	}
	leader.Restart()
}
