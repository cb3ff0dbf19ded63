package storetest

import "strings"

// quorumExceptions are those of core/quorum, which keeps exclusive locks, and no queue.
func quorumExceptions() Exceptions {
	const queue = "there is no queue: waiters poll, and a request is refused whatever waits"
	e := Exceptions{Store: "quorum", Leases: map[string]string{
		"lock: a cancelled context is its error":             "a renewal, a release and a check go to all members, even if the context has ended",
		"lock: a queued request can be repeated":             queue,
		"lock: places are numbers in the order of the queue": queue,
	}}
	for name := range strings.Lines(quorumLocks) {
		e.Leases["lock: "+strings.TrimSpace(name)] = "a quorum locks exclusively, and does not list"
	}
	for name := range strings.Lines(quorumSemaphores) {
		e.Leases["semaphore: "+strings.TrimSpace(name)] = "a quorum has no semaphores"
	}
	return e
}

const quorumLocks = `a held key is refused, or queued for
acquire recognises its own repeat
release recognises its own repeat
a release by another ID changes nothing
a hold is an ID and its fence
a withdrawal by ID alone ends a hold
releases are reported one by one
renewals are reported one by one
list yields keys that are held or waited for
keys may have any bytes
a store after shutdown refuses new requests
a closed store is unavailable
a hold expires
renewal extends a hold
an expired hold is not revived by a renewal, nor ended by a release
holds beside each other end on their own
downgrade reduces the weight
revoke ends one of several holds
a new request never overtakes the queue
a full queue refuses requests
await of an unknown request queues it
a request can be withdrawn after its grant
the end of a wait keeps the place
the end of a wait delays no other
a grant after a wait lasts for its TTL
places and grants that no call awaits expire
an expiry grants to the next waiter
an expiry grants to waiters behind a withdrawn one
the last expiry admits a request for all
an expiry with too little room grants nothing
expiries add up
a renewal keeps waiters waiting
inspect returns the waiters in their order
inspect lists a maximum of holders and waiters
a refusal says when enough holds expire
concurrent requests are granted up to the capacity
concurrent holders never exceed the capacity, and fences grow
many withdrawals do not block the queue
a reader does not overtake a waiting writer
a writer's release admits all readers before the next writer
requests behind a withdrawn one move up
`

const quorumSemaphores = `free capacity is granted
a held key is refused, or queued for
acquire recognises its own repeat
the repeat of an acquire returns no more than its lease
release recognises its own repeat
the release of an acquire whose caller has left is final
a release by another ID changes nothing
a hold is an ID and its fence
a withdrawal by ID alone ends a hold
releases are reported one by one
renewals are reported one by one
list yields keys that are held or waited for
keys may have any bytes
a cancelled context is its error
a store after shutdown refuses new requests
a closed store is unavailable
a hold expires
renewal extends a hold
an expired hold is not revived by a renewal, nor ended by a release
holds beside each other end on their own
fences grow, however a hold ends
downgrade reduces the weight
downgrade renews the lease
a late step after a release has no effect
revoke ends one of several holds
downgrade to any weight
many holds expire at once
expired holds delay no request, however many there are
one call can make room in several keys
a new request never overtakes the queue
a full queue refuses requests
await recognises its own repeat
await of an unknown request queues it
a queued request can be repeated
a request can be withdrawn after its grant
the end of a wait keeps the place
the end of a wait delays no other
a wait that begins after the withdrawal ends
places are numbers in the order of the queue
a request is queued anew at its number
a grant after a wait lasts for its TTL
places and grants that no call awaits expire
an expiry grants to the next waiter
an expiry grants to waiters behind a withdrawn one
the last expiry admits a request for all
an expiry with too little room grants nothing
expiries add up
successive expiries grant to successive waiters
a renewal keeps waiters waiting
inspect returns the waiters in their order
inspect lists a maximum of holders and waiters
a refusal says when enough holds expire
concurrent requests are granted up to the capacity
concurrent holders never exceed the capacity, and fences grow
many withdrawals do not block the queue
a release grants to the next waiter, and wakes no other
a heavy release makes room for several
a light request does not overtake a heavy one
light requests do not starve a heavy one
requests behind a withdrawn one move up
a withdrawn request is skipped
a grant that no call awaits leaves room
a grant that no call awaits leaves room for a new request
the largest capacity can be used up
weights up to the capacity
a capacity of one
every request is limited by its own capacity
a smaller capacity ends no hold
a waiting request is granted with a larger capacity
a larger capacity does not change the place
a waiting request with a smaller capacity waits longer
a request that can never be granted is refused
a waiting request that can never be granted is removed
a reserve is left to others
a smaller reserve goes first
a request is never behind one with a larger reserve
waiters with a smaller reserve count
waiters with a smaller reserve count at a release too
waiters with a larger reserve do not count
several tiers are served in their order
a withdrawal lets in a lower tier
a tier that is blocked blocks no other
a tier that is blocked blocks no other at a release
no request overtakes one with the same reserve
tiers keep their order among capacities
a larger capacity is no smaller reserve
`
