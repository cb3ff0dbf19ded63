package observability_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// TestTelemetry makes all mechanisms return every result, on both stores, and compares the signals
// with the documents.
func TestTelemetry(t *testing.T) {
	server, cluster := redistest.Start(t), redistest.StartCluster(t)
	w := newWorld(t)
	known := new(tokens)
	broken := w.memstore()
	store := tapped{broken, known}
	driveLimiter(w, store, broken)
	driveCandidate(w, store, broken)
	driveSettlements(w, store, broken)
	driveFullAndClosed(w)
	driveOverload(w)
	driveNamesakes(w)
	drivePresence(w)
	driveConsole(w)
	driveRules(w)
	driveLocks(w, store, broken)
	driveElection(w, store, broken)
	driveSemaphore(w, store, broken)
	driveGuard(w, store, broken, known)
	driveDelay(w, store)
	driveDelayFaults(w, broken)
	driveHTTP(w, store, broken)
	driveRPC(w, store, broken)
	driveBypasses(w, store, broken)
	driveShadow(w, broken)
	driveMistakes(w, store)
	driveCluster(w, cluster)
	driveRedis(w, server, known)
	e := w.summarize()
	t.Run("document", e.checkDocument)
	t.Run("log", w.checkLog)
	t.Run("once", w.checkOnce)
	t.Run("alerts", w.checkAlerts)
	t.Run("dashboard", w.checkDashboard)
	t.Run("secrets", func(t *testing.T) { w.checkSecrets(t, known, server, cluster) })
}
