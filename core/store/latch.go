package store

import (
	"context"
	"time"
)

// Latches keeps latches. core/memstore, core/redisstore, core/pgstore, core/etcdstore and
// core/zkstore implement it; storetest.Latches is the suite that every implementation must pass. A
// latch is the set of the participants that have counted it down. It is kept for its TTL after the
// last new participant.
type Latches interface {
	// CountDownLatch adds a participant to the set, and returns how many are in it. A repeat of the
	// same participant changes nothing.
	CountDownLatch(ctx context.Context, req LatchRequest, participant string) (arrived int, err error)

	// InspectLatch returns how many participants are in the set.
	InspectLatch(ctx context.Context, req LatchRequest) (arrived int, err error)

	// AwaitLatch blocks until the set has at least the request's Count of participants. It returns
	// nil, the context's error, or an error that matches ErrUnavailable if the store was silent for
	// longer than a few seconds.
	AwaitLatch(ctx context.Context, req LatchRequest) error
}

// LatchRequest names a latch.
type LatchRequest struct {
	Name  string
	Count int           // how many participants open it, 1 to [MaxParticipants]
	TTL   time.Duration // from the last change of the set
}

// MaxParticipants is the largest count of a latch. A store refuses further participants with an
// error that matches [ErrFull].
const MaxParticipants = 1 << 20
