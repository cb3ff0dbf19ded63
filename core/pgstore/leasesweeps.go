package pgstore

// leaseSweeps remove what means nothing any more: keys that have been idle for an hour, of which the
// clock has passed the last fence, processes that wait no more, and old tombstones. Of a large table
// of keys they look at some pages at a time, since an index on what changes would cost every step.
var leaseSweeps = []string{
	`DELETE FROM lk.lease_tombstones WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.lease_tombstones WHERE until < lk.now_us() LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.lease_processes WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.lease_processes WHERE beat + greatest(60000000, span) < lk.now_us() LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`SELECT FROM lk.sweep_leases_1(100)`,
	`WITH idle AS (DELETE FROM lk.leases WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.leases
		TABLESAMPLE SYSTEM ((SELECT least(100, 1000 * 100.0 * 8192 / greatest(pg_relation_size('lk.leases'), 1))))
		WHERE NOT busy AND (holder IS NULL OR ends < lk.now_us() - 3600000000)
			AND greatest(fence, number, late) < lk.now_us() - 3600000000 AND (NOT bound OR pg_try_advisory_xact_lock(lk.bind_key_1(id)))
		LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING id)
	DELETE FROM lk.lease_keys WHERE id = ANY (ARRAY(SELECT k.id FROM lk.lease_keys k JOIN idle i ON i.id = k.id FOR UPDATE OF k SKIP LOCKED))`,
}
