package connectmw_test

import (
	"crypto/rand"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// tableOfBehaviour are the tests of what a client sees, which do not depend on the store.
var tableOfBehaviour = map[string]func(*testing.T){
	"over the limit":               TestOverTheLimit,
	"a stream is charged once":     TestStreamIsChargedOnce,
	"fail open":                    TestFailOpen,
	"a call is settled":            TestACallCostsWhatItsHandlerReports,
	"charged by code":              TestChargeCodes,
	"many failing calls at once":   TestManyFailingCallsAtOnce,
	"calls at once hold their key": TestOpenAttempts,
	"a settlement that fails":      TestASettlementThatFails,
	"locked":                       TestCallsOfAKeyExcludeEachOther,
	"too many at once":             TestCallsAreLimitedToTheCapacity,
	"the server is full":           TestOverload,
	"tiers":                        TestTiersOfCalls,
	"a waiting call":               TestWaitingCallIsServed,
	"more than may wait":           TestMaximumOfWaiters,
	"a lost lock":                  TestLostLock,
	"a key is missing, malformed":  TestMissingAndMalformedKeys,
	"a key of another call":        TestKeyOfAnotherCall,
	"a full scope":                 TestFullScope,
	"scopes":                       TestScopesAreSeparate,
	"a twin in flight":             TestTwinInFlight,
	"twins wait":                   TestTwinsWaitAndGetTheAnswer,
	"a twin runs":                  TestATwinThatWaitsRunsIfTheAttemptIsReleased,
	"a twin is refused":            TestATwinThatWaitsIsRefused,
	"a twin has waited":            TestATwinThatHasWaitedForLongEnough,
	"too many twins":               TestMoreTwinsThanMayWait,
	"a twin stops waiting":         TestATwinStopsWaiting,
	"no key":                       TestCallsWithoutAKeyAreDeduplicated,
	"a twin finished":              TestTwinGetsTheSameAnswer,
	"an error is replayed":         TestAnErrorIsReplayedWithItsDetails,
	"an answer is not kept":        TestTooLargeAnswer,
	"which errors are kept":        TestWhichErrorsAreKept,
	"how long answers are kept":    TestHowLongAnswersAreKept,
	"the outcome is unknown":       TestPanicLeavesAnUnknownOutcome,
	"an operator's answer":         TestAnOperatorsAnswerIsReplayed,
	"the store is down":            TestRunUnprotected,
	"a handler outlives a client":  TestHandlerOutlivesItsClient,
	"a refusal of an inner call":   TestRefusalOfAnInnerCall,
	"a refusal is not kept":        TestRefusalIsNotKept,
	"a canceled call that waits":   TestACanceledCallLeavesTheQueue,
	"a stream holds until its end": TestStreamHoldsUntilItsEnd,
	"a token for each message":     TestPerMessage,
	"an unknown code":              TestInvalidCodeIsUnknown,
	"streams are not guarded":      TestStreamsAreNotGuarded,
	"a cause stays hidden":         TestWrappedRefusalHidesItsCause,
	"a link to the problem":        TestProblemTypes,
	"fences":                       TestFenced,
	"clients send fences":          TestClientsSendTheFenceOfTheirLease,
	"clients obey":                 TestAnswersHoldTheKeyOfACall,
	"clients send keys":            TestClientsSendKeys,
}

// clientProtocols are what connect's clients speak.
var clientProtocols = map[string][]connect.ClientOption{
	"Connect": nil, "Connect with JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()},
}

// The protocols and the kinds of stores have their turns: those of newStore and dial are those of
// all tests that run. The tests of the table run beside each other.
func TestTable(t *testing.T) {
	run := func(t *testing.T, open func(t *testing.T) store.Store, speaks []connect.ClientOption) {
		openStore, protocol = open, speaks
		t.Cleanup(func() { openStore, protocol = inMemory, nil }) // after the parts, which are parallel
		for name, test := range tableOfBehaviour {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	}
	for name, speaks := range clientProtocols {
		t.Run("memory, "+name, func(t *testing.T) { run(t, inMemory, speaks) })
	}
	for name, start := range redistest.Servers {
		t.Run(name, func(t *testing.T) {
			server := start(t)
			run(t, func(t *testing.T) store.Store {
				c := server()
				st := must(redisstore.New(c, redisstore.WithPrefix(rand.Text()), redisstore.WithTimeout(10*time.Second))) // a busy machine is no outage
				t.Cleanup(func() {
					_ = st.Close()
					_ = c.Close()
				})
				return st
			}, nil)
		})
	}
}
