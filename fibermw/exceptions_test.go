package fibermw_test

// Exceptions implements mwtest.Excepting. The tests that are named show the reasons.
func (framework) Exceptions() map[string]string {
	const (
		leaves  = "fasthttp does not report that a client has left: TestAClientThatLeavesIsServed"
		stops   = "fasthttp does not report that the server stops: TestShutdownAwaitsRequestsThatWait"
		body    = "fasthttp has read the body before handlers run: TestBodiesAreReadBefore"
		trailer = "fasthttp sends trailers of streams alone: TestTrailersNeedAStream"
		returns = "fasthttp sends an answer when its handlers have returned: TestAStreamBeginsAfterItsHandlers"
	)
	return map[string]string{
		"cost/a limit in memory adds six allocations": "the adapter makes a request of net/http: TestCostOfALimit",

		"usage/a context that a plan keeps sees nothing of later requests": "fiber's context never ends: TestAPlanKeepsItsContext",

		"settled/a request costs what its handler reports, however it ends": leaves + "; TestCostsHoweverAHandlerEnds",
		"settled/an attempt whose status is not known counts":               leaves + "; TestCostsHoweverAHandlerEnds",

		"requests/unfinished bodies are limited in memory": body,

		"concurrency/failures and streams do not raise an adaptive capacity, and streams do not lower it": leaves + "; TestCapacityAdaptsToHandlers",

		"repeats/a flushed answer is kept although its client has left":                  returns,
		"repeats/a flushed answer is replayed when it has ended":                         returns,
		"repeats/a flushed answer of a handler that gives up is not replayed":            returns,
		"repeats/a stream of events is not retained":                                     returns,
		"repeats/an answer that is too large, or a connection, is not retained":          "fasthttp has no connections to take over while a handler runs: TestAConnectionIsTakenOverAfterItsHandlers; TestAnswersThatDoNotFit",
		"twins/a request that waits ends with its server":                                stops,
		"twins/a request whose client leaves waits no longer, and its body is forgotten": leaves,
		"dedupe/a client that leaves when its turn comes":                                leaves,
		"holds/an outage policy is for outages":                                          leaves,
		"holds/a disconnected client of another process leaves the queue":                leaves,
		"holds/a disconnected client holds the key until its handler returns":            leaves,
		"leaving/a client that disconnects stops waiting":                                leaves,
		"leaving/a handler can see that its client has disconnected":                     leaves,
		"answers/announced trailers are replayed":                                        trailer,
		"answers/unannounced trailers are replayed":                                      trailer,
		"answers/trailers without a body are replayed":                                   trailer,
		"through/a read deadline applies":                                                body,
		"through/events arrive as they are written":                                      returns,
	}
}
