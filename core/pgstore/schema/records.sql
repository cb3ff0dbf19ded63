-- The records of operations. Times are µs of the server's clock, spans are µs.

CREATE TABLE IF NOT EXISTS lk.operations (
  id text COLLATE "C" PRIMARY KEY,
  guard text COLLATE "C" NOT NULL,
  scope text COLLATE "C" NOT NULL,        -- empty if it has none
  -- F in flight, R reconciling, C completed, N not retained, U unknown, A abandoned: no record
  state "char" NOT NULL,
  -- Of the attempt in flight: M it may have had some, N none, S all of them are in steps
  effects "char" NOT NULL,
  prior boolean NOT NULL DEFAULT false,   -- an earlier attempt may have had effects
  owner text COLLATE "C" NOT NULL,
  fingerprint text COLLATE "C" NOT NULL,
  number int NOT NULL,
  lease_ends bigint NOT NULL,
  lease bigint NOT NULL,                  -- the rest is never more, even if the clock steps back
  expires bigint NOT NULL,
  slice bigint NOT NULL,                  -- not before expires, and seldom changed: see slice_1
  created bigint NOT NULL,
  changed bigint NOT NULL,                -- except by renewals
  marks bigint NOT NULL DEFAULT 0,        -- the highest Seq of the attempt's marks
  steps int NOT NULL DEFAULT 0,
  status smallint NOT NULL DEFAULT 0,
  inboxes text[],                         -- of processes that await the end of the attempt
  withdrawn text[],                       -- the last owners that abandoned: their delayed begins start nothing
  holder bytea NOT NULL,
  data bytea
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
ALTER TABLE lk.operations ALTER COLUMN data SET STORAGE EXTERNAL; -- guards compress
-- The only other index: a change of slice is rare, so that updates are heap-only.
CREATE INDEX IF NOT EXISTS operations_slice ON lk.operations (slice);

CREATE TABLE IF NOT EXISTS lk.operation_steps (
  id text COLLATE "C" REFERENCES lk.operations ON DELETE CASCADE,
  place int,
  name bytea NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (id, place)
);
ALTER TABLE lk.operation_steps ALTER COLUMN data SET STORAGE EXTERNAL;

-- The counts of the records of a scope, and of the bytes of their results, by slice. A count is the
-- sum of parts, so that no operation waits for the transaction of another one: see count_1. A part
-- may be negative.
CREATE TABLE IF NOT EXISTS lk.scopes (
  scope text COLLATE "C",
  slice bigint,
  part int,
  records int NOT NULL,
  bytes bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (scope, slice, part)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS scopes_slice ON lk.scopes (slice);

-- slice_1 returns the slice of a record that is kept for a retention from now. Time is divided into
-- sixteenths of the retention. The slice is the end of the last record that begins in the same
-- sixteenth.
CREATE OR REPLACE FUNCTION lk.slice_1(at bigint, retention bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$SELECT (at / (retention / 16 + 1) + 1) * (retention / 16 + 1) + retention$$;

-- fits_1 reports whether a slice fits a record that expires then.
CREATE OR REPLACE FUNCTION lk.fits_1(slice bigint, expires bigint, retention bigint) RETURNS boolean
  LANGUAGE sql IMMUTABLE AS
$$SELECT slice BETWEEN expires AND expires + retention / 16 + 1$$;

-- left_1 returns the rest of a lease.
CREATE OR REPLACE FUNCTION lk.left_1(o lk.operations, at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$SELECT CASE WHEN o.state IN ('F', 'R') THEN greatest(least(o.lease_ends - at, o.lease), 0) ELSE 0 END$$;

-- operation_key_1 is the key of the advisory lock of an operation that runs in a transaction of its
-- own. The operation has no record before that ends.
CREATE OR REPLACE FUNCTION lk.operation_key_1(id text) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$SELECT hashtextextended('lk.operation ' || id, 0)$$;

-- is_open_1 reports whether a transaction is open in which the operation runs. If it is false, a
-- transaction that was in doubt has ended.
CREATE OR REPLACE FUNCTION lk.is_open_1(id text) RETURNS boolean LANGUAGE sql VOLATILE AS
$$SELECT NOT pg_try_advisory_xact_lock_shared(lk.operation_key_1(id))$$;

-- confirm_1 makes the transaction wait, when it ends, for the synchronous replicas, and so for the
-- commits that it has read. Other transactions see a commit whose wait was canceled, and a failover
-- may lose it. Without such replicas this costs nothing.
CREATE OR REPLACE FUNCTION lk.confirm_1() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_standby_names') <> '' THEN
    PERFORM pg_logical_emit_message(true, 'lockkeeper', '');
  END IF;
  RETURN true;
END $$;

-- refuse_1 rolls a statement back: the scope is full.
CREATE OR REPLACE FUNCTION lk.refuse_1(remaining bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the scope is full' USING ERRCODE = 'LK001', DETAIL = greatest(remaining, 0);
END $$;

-- part_1 returns a part of a scope's counts that no other transaction changes before this one ends:
-- one of so many parts from first on, or NULL if all are in use. Parts are taken in their order, so
-- that a scope has few of them.
CREATE OR REPLACE FUNCTION lk.part_1(of_scope text, first int, parts int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  key bigint := hashtextextended('lk.scope ' || of_scope, 0);
BEGIN
  FOR part IN first .. first + parts - 1 LOOP
    IF pg_try_advisory_xact_lock(key # part) THEN
      RETURN part;
    END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- count_1 adds records and bytes to a slice of a scope, and returns the bytes of the part. It waits
-- for no other transaction: if all parts are in use, it takes a part of its own. Parts below 16
-- have the records that have begun: see add_record_1.
CREATE OR REPLACE FUNCTION lk.count_1(of_scope text, of_slice bigint, more_records int, more_bytes bigint,
  first int DEFAULT 16)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  own bigint;
BEGIN
  INSERT INTO lk.scopes AS s (scope, slice, part, records, bytes)
    VALUES (of_scope, of_slice, coalesce(lk.part_1(of_scope, first, 16), -pg_backend_pid()), more_records, more_bytes)
    ON CONFLICT (scope, slice, part) DO UPDATE SET records = s.records + excluded.records,
      bytes = s.bytes + excluded.bytes
    RETURNING s.bytes INTO own;
  RETURN own;
END $$;

-- sum_1 returns the records and bytes of a scope in all slices, and the first slice with records.
-- It does not include the counts of other transactions that are not committed.
CREATE OR REPLACE FUNCTION lk.sum_1(of_scope text, at bigint, OUT records bigint, OUT bytes bigint, OUT first bigint)
LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(sum(t.records), 0)::bigint, coalesce(sum(t.bytes), 0)::bigint,
    min(t.slice) FILTER (WHERE t.records > 0) FROM (
    SELECT s.slice, sum(s.records) AS records, sum(s.bytes) AS bytes FROM lk.scopes s
      WHERE s.scope = of_scope AND s.slice > at GROUP BY s.slice) t
$$;

-- add_record_1 counts a record that begins. It fails with LK001 if its scope then has more than
-- most records; 0 is no limit. It returns the number of the scope's records, or 0 if it has not
-- added them up.
--
-- All slices are added up at the first record of a part, and whenever a part has grown by so much
-- that all parts together are less than a sixteenth above the limit. A sum lacks the records of
-- transactions in progress, one in each other part. So a small limit has few parts. A limit of less
-- than 32 has a single part, of which the sum is exact. It waits only if all parts are in use by
-- others that begin.
CREATE OR REPLACE FUNCTION lk.add_record_1(of_scope text, of_slice bigint, most bigint) RETURNS bigint
  LANGUAGE plpgsql AS $$
DECLARE
  parts int := CASE WHEN most > 0 THEN least(greatest(most / 16, 1), 16) ELSE 16 END;
  my_part int := lk.part_1(of_scope, 0, parts);
  own int;
  at bigint;
  room record;
BEGIN
  IF my_part IS NULL THEN
    my_part := pg_backend_pid() % parts;
    PERFORM pg_advisory_xact_lock(hashtextextended('lk.scope ' || of_scope, 0) # my_part);
  END IF;
  INSERT INTO lk.scopes AS s (scope, slice, part, records) VALUES (of_scope, of_slice, my_part, 1)
    ON CONFLICT (scope, slice, part) DO UPDATE SET records = s.records + 1 RETURNING s.records INTO own;
  IF most > 0 AND (own = 1 OR own % greatest(most / 16 / parts, 1) = 0) THEN
    at := lk.now_us();
    room := lk.sum_1(of_scope, at);
    IF room.records > most THEN
      PERFORM lk.refuse_1(room.first - at);
    END IF;
    RETURN room.records;
  END IF;
  RETURN 0;
END $$;

-- add_bytes_1 counts the bytes of a result, and returns true. If its scope then has more than most
-- bytes, it counts nothing, and returns false; 0 is no limit. All slices are added up whenever a
-- part has grown by a part of a sixteenth of the limit. The sum lacks the results of transactions
-- in progress.
CREATE OR REPLACE FUNCTION lk.add_bytes_1(of_scope text, of_slice bigint, more_bytes bigint, most bigint,
  first int DEFAULT 0)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  own bigint := lk.count_1(of_scope, of_slice, 0, more_bytes, first);
  step bigint := greatest(most / 256, 1);
BEGIN
  IF most > 0 AND (own = more_bytes OR own / step > (own - more_bytes) / step)
    AND (lk.sum_1(of_scope, lk.now_us())).bytes > most THEN
    PERFORM lk.count_1(of_scope, of_slice, 0, -more_bytes, first);
    RETURN false;
  END IF;
  RETURN true;
END $$;

-- move_record_1 counts a record in another slice. Without a scope it does nothing.
CREATE OR REPLACE FUNCTION lk.move_record_1(of_scope text, old_slice bigint, new_slice bigint) RETURNS void
  LANGUAGE plpgsql AS $$
BEGIN
  IF of_scope <> '' AND old_slice <> new_slice THEN
    PERFORM lk.count_1(of_scope, old_slice, -1, 0);
    PERFORM lk.count_1(of_scope, new_slice, 1, 0);
  END IF;
END $$;

-- begin_operation_1 is BeginOperation without a shortcut. If the record is new, remaining is the
-- number of the scope's records. It fails with 55P03 if a transaction keeps the record locked.
-- unknown is the action for an unknown outcome: rerun, reconcile, or nothing.
CREATE OR REPLACE FUNCTION lk.begin_operation_1(of_id text, of_guard text, of_scope text, by text, for_fingerprint text,
  for_lease bigint, retention bigint,
  unknown text, most int, for_holder bytea, OUT outcome text, OUT number int, OUT remaining bigint, OUT state text,
  OUT status smallint, OUT effects text, OUT data bytea, OUT names bytea[], OUT steps bytea[])
  LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
#variable_conflict use_column
DECLARE
  o lk.operations;
  found_it boolean;
  known boolean;
  at bigint;
  room record;
  new_slice bigint;
BEGIN
  LOOP
    SELECT * INTO o FROM lk.operations WHERE id = of_id FOR UPDATE;
    found_it := FOUND;
    at := lk.now_us();
    IF by = ANY (o.withdrawn) AND o.changed > at - 60000000 THEN
      outcome := 'refused';
      RETURN;
    END IF;
    EXIT WHEN found_it AND o.state <> 'A' AND o.expires > at;
    -- It is new.
    new_slice := lk.slice_1(at, retention);
    IF of_scope <> '' AND most > 0 THEN
      room := lk.sum_1(of_scope, at);
      IF room.records >= most THEN
        outcome := 'full';
        remaining := greatest(room.first - at, 0);
        RETURN;
      END IF;
    END IF;
    IF NOT found_it THEN
      INSERT INTO lk.operations (id, guard, scope, state, effects, owner, fingerprint, number, lease_ends, lease,
        expires, slice, created, changed, holder)
        VALUES (of_id, of_guard, of_scope, 'F', 'M', by, for_fingerprint, 1, at + for_lease, for_lease, at + retention,
          new_slice, at, at, for_holder)
        ON CONFLICT (id) DO NOTHING;
      CONTINUE WHEN NOT FOUND; -- another transaction was first
    ELSE
      DELETE FROM lk.operation_steps WHERE id = of_id AND o.steps > 0;
      UPDATE lk.operations SET state = 'F', effects = 'M', prior = false, owner = by, fingerprint = for_fingerprint,
        number = 1, lease_ends = at + for_lease, lease = for_lease, expires = at + retention, slice = new_slice,
        created = at, changed = at, marks = 0, steps = 0, status = 0, inboxes = NULL, holder = for_holder, data = NULL,
        withdrawn = CASE WHEN o.changed > at - 60000000 OR o.withdrawn IS NOT NULL AND lk.is_open_1(of_id)
          THEN o.withdrawn END
        WHERE id = of_id;
      IF o.state <> 'A' AND o.scope <> '' AND o.slice > at THEN -- it counts until its slice ends
        PERFORM lk.count_1(o.scope, o.slice, -1, -coalesce(octet_length(o.data), 0));
      END IF;
    END IF;
    IF of_scope <> '' THEN
      remaining := lk.add_record_1(of_scope, new_slice, most);
    END IF;
    outcome := 'started';
    number := 1;
    effects := 'M';
    RETURN;
  END LOOP;

  number := o.number;
  IF o.fingerprint <> for_fingerprint THEN
    outcome := 'mismatched';
    RETURN;
  END IF;
  IF o.state IN ('F', 'R') AND o.owner = by THEN -- a repeat
    PERFORM lk.confirm_1();
    outcome := CASE o.state WHEN 'R' THEN 'reconcile' ELSE 'started' END;
    effects := o.effects;
  ELSIF lk.left_1(o, at) > 0 THEN
    outcome := 'busy';
    remaining := lk.left_1(o, at);
    IF o.lease_ends - at > o.lease THEN -- the clock stepped back
      UPDATE lk.operations SET lease_ends = at + o.lease WHERE id = of_id;
    END IF;
    RETURN;
  ELSIF o.state NOT IN ('F', 'R', 'U') THEN
    PERFORM lk.confirm_1();
    outcome := 'settled';
    state := o.state;
    status := o.status;
    data := o.data;
    RETURN;
  ELSE
    known := o.state = 'F' AND o.effects <> 'M' AND NOT o.prior;
    IF NOT known AND unknown = '' THEN
      outcome := CASE o.state WHEN 'U' THEN 'settled' ELSE 'undecided' END;
      state := 'U';
      RETURN;
    END IF;
    new_slice := CASE WHEN lk.fits_1(o.slice, at + retention, retention) THEN o.slice
      ELSE lk.slice_1(at, retention) END;
    IF known OR unknown = 'rerun' THEN
      outcome := 'started';
      number := o.number + 1;
      effects := CASE WHEN o.state = 'F' AND o.effects = 'S' THEN 'S' ELSE 'M' END;
      UPDATE lk.operations SET state = 'F', effects = begin_operation_1.effects, prior = NOT known,
        number = begin_operation_1.number, holder = for_holder WHERE id = of_id;
    ELSE
      outcome := 'reconcile';
      effects := 'M';
      UPDATE lk.operations SET state = 'R', effects = 'M' WHERE id = of_id;
    END IF;
    UPDATE lk.operations SET owner = by, lease_ends = at + for_lease, lease = for_lease, expires = at + retention,
      slice = new_slice, changed = greatest(at, o.changed + 1), marks = 0, data = NULL WHERE id = of_id;
    PERFORM lk.move_record_1(o.scope, o.slice, new_slice);
  END IF;
  IF o.steps > 0 THEN
    SELECT array_agg(s.name ORDER BY s.place), array_agg(s.data ORDER BY s.place) INTO names, steps
      FROM lk.operation_steps s
      WHERE s.id = of_id;
  END IF;
END $$;

-- settle_operation_1 is SettleOperation without a shortcut. first is the first part of the scope's
-- counts that it changes.
CREATE OR REPLACE FUNCTION lk.settle_operation_1(of_id text, of_guard text, of_scope text, by text,
  for_fingerprint text, for_number int, to_state "char", to_status smallint,
  to_data bytea, retention bigint, most bigint, for_holder bytea, first int DEFAULT 0, OUT owned boolean,
  OUT waiting text[]) LANGUAGE plpgsql AS $$
DECLARE
  o lk.operations;
  found_it boolean;
  gone boolean;
  at bigint;
  new_slice bigint;
  size bigint := coalesce(octet_length(to_data), 0);
BEGIN
  LOOP
    SELECT * INTO o FROM lk.operations WHERE id = of_id FOR UPDATE;
    found_it := FOUND;
    at := lk.now_us();
    gone := NOT found_it OR o.state = 'A' OR o.expires <= at AND o.owner <> by;
    IF NOT gone THEN
      owned := o.owner = by;
      waiting := o.inboxes;
      IF NOT owned OR o.state NOT IN ('F', 'R') THEN -- lost, or a repeat
        PERFORM lk.confirm_1();
        RETURN;
      END IF;
    END IF;
    EXIT WHEN found_it;
    INSERT INTO lk.operations (id, guard, scope, state, effects, owner, fingerprint, number, lease_ends, lease, expires,
      slice, created, changed, holder)
      VALUES (of_id, of_guard, of_scope, 'A', 'M', by, for_fingerprint, for_number, 0, 0, at + retention,
        lk.slice_1(at, retention), at, at, for_holder)
      ON CONFLICT (id) DO NOTHING;
  END LOOP;
  owned := true;
  new_slice := CASE WHEN NOT gone AND lk.fits_1(o.slice, at + retention, retention) THEN o.slice
    ELSE lk.slice_1(at, retention) END;
  IF of_scope <> '' THEN
    IF o.state = 'A' THEN -- not counted
      PERFORM lk.count_1(of_scope, new_slice, 1, 0);
    ELSE
      PERFORM lk.move_record_1(of_scope, o.slice, new_slice);
    END IF;
    IF size > 0 AND NOT lk.add_bytes_1(of_scope, new_slice, size, most, first) THEN
      to_state := 'N';
      to_data := NULL;
    END IF;
  END IF;
  DELETE FROM lk.operation_steps WHERE id = of_id AND o.steps > 0;
  UPDATE lk.operations SET state = to_state, status = to_status, data = to_data, owner = by,
    fingerprint = for_fingerprint, number = for_number,
    lease_ends = 0, lease = 0, expires = at + retention, slice = new_slice, changed = greatest(at, o.changed + 1),
    steps = 0, prior = prior AND NOT gone, created = CASE WHEN gone THEN at ELSE created END, holder = for_holder
    WHERE id = of_id;
END $$;

-- abandon_operation_1 is AbandonOperation. It also reports whether the attempt has settled the
-- record.
CREATE OR REPLACE FUNCTION lk.abandon_operation_1(of_id text, of_guard text, of_scope text, by text, OUT owned boolean,
  OUT settled boolean, OUT waiting text[]) LANGUAGE plpgsql AS $$
DECLARE
  o lk.operations;
  found_it boolean;
  at bigint;
  owners text[];
BEGIN
  LOOP
    SELECT * INTO o FROM lk.operations WHERE id = of_id FOR UPDATE;
    found_it := FOUND;
    at := lk.now_us();
    owned := false;
    settled := false;
    EXIT WHEN found_it;
    INSERT INTO lk.operations (id, guard, scope, state, effects, owner, fingerprint, number, lease_ends, lease, expires,
      slice, created, changed, holder, withdrawn)
      VALUES (of_id, of_guard, of_scope, 'A', 'M', '', '', 0, 0, 0, at + 60000000, lk.slice_1(at, 60000000), at, at, '',
        ARRAY[by]) ON CONFLICT (id) DO NOTHING;
    IF FOUND THEN
      RETURN;
    END IF;
  END LOOP;
  IF by = ANY (o.withdrawn) THEN -- a repeat
    PERFORM lk.confirm_1();
    owned := true;
    RETURN;
  END IF;
  owned := o.owner = by AND o.state IN ('F', 'R') AND o.expires > at;
  owners := (coalesce(o.withdrawn, '{}') || by)[greatest(array_length(o.withdrawn, 1) - 30, 1):];
  settled := o.owner = by AND o.state NOT IN ('F', 'R', 'A');
  IF NOT owned THEN
    UPDATE lk.operations SET withdrawn = owners, changed = greatest(at, o.changed + 1) WHERE id = of_id AND NOT settled;
    RETURN;
  END IF;
  waiting := o.inboxes;
  IF o.state = 'R' OR o.prior OR o.effects = 'S' THEN -- keep the evidence; late steps of the attempt have no effect
    UPDATE lk.operations SET state = CASE o.state WHEN 'R' THEN 'U'::"char" ELSE o.state END,
      effects = CASE WHEN o.state = 'R' OR o.prior THEN 'M'::"char" ELSE o.effects END,
      owner = '', lease_ends = 0, lease = 0, changed = greatest(at, o.changed + 1), withdrawn = owners WHERE id = of_id;
    IF o.state = 'R' AND o.steps > 0 THEN
      DELETE FROM lk.operation_steps WHERE id = of_id;
      UPDATE lk.operations SET steps = 0 WHERE id = of_id;
    END IF;
    RETURN;
  END IF;
  IF o.scope <> '' THEN
    PERFORM lk.count_1(o.scope, o.slice, -1, 0);
  END IF;
  DELETE FROM lk.operation_steps WHERE id = of_id AND o.steps > 0;
  UPDATE lk.operations SET state = 'A', owner = '', lease_ends = 0, lease = 0, expires = at + 60000000,
    slice = lk.slice_1(at, 60000000), steps = 0,
    changed = greatest(at, o.changed + 1), withdrawn = owners WHERE id = of_id;
END $$;

-- undo_operation_1 abandons an attempt whose transaction may have been committed, so that it cannot
-- be committed from then on. It returns:
--   - settled: the transaction was committed;
--   - open: a transaction of the operation has not ended, and may be that one, with its commit in
--     progress.
CREATE OR REPLACE FUNCTION lk.undo_operation_1(of_id text, of_guard text, of_scope text, by text, OUT settled boolean,
  OUT open boolean)
LANGUAGE plpgsql AS $$
BEGIN
  open := lk.is_open_1(of_id); -- first: the result of a transaction that has ended is visible then
  SELECT a.settled INTO undo_operation_1.settled FROM lk.abandon_operation_1(of_id, of_guard, of_scope, by) a;
  PERFORM lk.confirm_1();
END $$;

-- record_step_1 is RecordStep. It returns 1, 0 if the attempt does not own the record, or -1 if
-- there are too many steps.
CREATE OR REPLACE FUNCTION lk.record_step_1(of_id text, by text, of_name bytea, of_data bytea, most int) RETURNS int
  LANGUAGE plpgsql AS $$
DECLARE
  o lk.operations;
  at bigint;
BEGIN
  SELECT * INTO o FROM lk.operations WHERE id = of_id AND owner = by AND state IN ('F', 'R') FOR UPDATE;
  at := lk.now_us();
  IF NOT FOUND OR o.expires <= at THEN
    RETURN 0;
  ELSIF EXISTS (SELECT FROM lk.operation_steps WHERE id = of_id AND name = of_name) THEN
    PERFORM lk.confirm_1();
    RETURN 1;
  ELSIF o.steps >= most THEN
    RETURN -1;
  END IF;
  INSERT INTO lk.operation_steps (id, place, name, data) VALUES (of_id, o.steps, of_name, of_data);
  UPDATE lk.operations SET steps = steps + 1, changed = greatest(at, changed + 1) WHERE id = of_id;
  RETURN 1;
END $$;

-- renew_operation_1 renews a lease whose record is to be counted in another slice. It fails if
-- another transaction has the record.
CREATE OR REPLACE FUNCTION lk.renew_operation_1(of_id text, by text, for_lease bigint,
  retention bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  o lk.operations;
  at bigint;
  new_slice bigint;
BEGIN
  SELECT * INTO o FROM lk.operations WHERE id = of_id AND owner = by AND state IN ('F', 'R') FOR UPDATE NOWAIT;
  at := lk.now_us();
  IF NOT FOUND OR o.expires <= at THEN
    RETURN false;
  END IF;
  new_slice := CASE WHEN o.slice >= at + retention THEN o.slice ELSE lk.slice_1(at, retention) END;
  UPDATE lk.operations SET lease_ends = at + for_lease, lease = for_lease, expires = greatest(expires, at + retention),
    slice = new_slice WHERE id = of_id;
  PERFORM lk.move_record_1(o.scope, o.slice, new_slice);
  RETURN true;
END $$;

-- await_operation_1 registers an inbox for the end of the attempt in flight. It returns the rest of
-- its lease, or 0.
CREATE OR REPLACE FUNCTION lk.await_operation_1(of_id text, inbox text, most int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  o lk.operations;
  remaining bigint;
BEGIN
  SELECT * INTO o FROM lk.operations WHERE id = of_id;
  remaining := coalesce(lk.left_1(o, lk.now_us()), 0);
  IF remaining = 0 AND NOT pg_try_advisory_xact_lock_shared(lk.operation_key_1(of_id)) THEN
    RETURN 20000; -- in a transaction of its own: check again
  ELSIF remaining > 0 AND coalesce(inbox <> ALL (o.inboxes) AND array_length(o.inboxes, 1) < most, true) THEN
    UPDATE lk.operations SET inboxes = coalesce(inboxes, '{}') || inbox
      WHERE id = of_id AND owner = o.owner AND state IN ('F', 'R')
        AND coalesce(inbox <> ALL (inboxes) AND array_length(inboxes, 1) < most, true);
    IF NOT FOUND THEN -- it may have ended, or another call has registered the inbox
      SELECT * INTO o FROM lk.operations WHERE id = of_id;
      remaining := coalesce(lk.left_1(o, lk.now_us()), 0);
    END IF;
  END IF;
  RETURN remaining;
END $$;

-- resolve_operation_1 is ResolveOperation.
CREATE OR REPLACE FUNCTION lk.resolve_operation_1(of_id text, of_guard text, of_scope text, by text, version text,
  to_state "char", to_status smallint, to_data bytea,
  retention bigint, OUT outcome text, OUT waiting text[]) LANGUAGE plpgsql AS $$
DECLARE
  o lk.operations;
  at bigint;
  new_slice bigint;
BEGIN
  SELECT * INTO o FROM lk.operations WHERE id = of_id AND guard = of_guard AND scope = of_scope FOR UPDATE;
  at := lk.now_us();
  outcome := 'changed';
  IF NOT FOUND OR o.state = 'A' OR o.expires <= at THEN
    RETURN;
  ELSIF o.owner = 'resolved:' || by THEN -- a repeat
    PERFORM lk.confirm_1();
    outcome := 'resolved';
    RETURN;
  ELSIF o.state <> 'R' OR o.owner <> by THEN
    IF version <> o.changed || o.owner THEN
      RETURN;
    ELSIF o.state NOT IN ('F', 'R', 'U') THEN
      outcome := 'known';
      RETURN;
    ELSIF lk.left_1(o, at) > 0 THEN
      outcome := 'in use';
      RETURN;
    END IF;
  END IF;
  outcome := 'resolved';
  waiting := o.inboxes;
  new_slice := CASE WHEN lk.fits_1(o.slice, at + retention, retention) THEN o.slice ELSE lk.slice_1(at, retention) END;
  PERFORM lk.move_record_1(o.scope, o.slice, new_slice);
  IF o.scope <> '' AND octet_length(to_data) > 0 THEN
    PERFORM lk.add_bytes_1(o.scope, new_slice, octet_length(to_data), 0);
  END IF;
  DELETE FROM lk.operation_steps WHERE id = of_id AND o.steps > 0;
  UPDATE lk.operations SET state = to_state, effects = 'N', prior = false, owner = 'resolved:' || by, lease_ends = 0,
    lease = 0, status = to_status,
    data = to_data, expires = at + retention, slice = new_slice, changed = greatest(at, o.changed + 1), steps = 0
    WHERE id = of_id;
END $$;

-- complete_operation_1 settles an attempt in the caller's transaction. It returns:
--   - owned, also if the attempt has settled the record earlier in this transaction;
--   - lost, if the attempt does not own the record;
--   - settled, if the attempt has settled the record in another transaction.
--
-- A setting of the transaction tells owned and settled apart. A rollback to a savepoint undoes it,
-- as it does the settlement.
CREATE OR REPLACE FUNCTION lk.complete_operation_1(of_id text, of_guard text, of_scope text, by text,
  for_fingerprint text, for_number int, to_state text,
  to_status int, to_data bytea, retention bigint, most bigint, for_holder bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  o lk.operations;
  own text := coalesce(current_setting('lockkeeper.completed', true), '');
BEGIN
  SELECT * INTO o FROM lk.operations WHERE id = of_id AND owner = by FOR UPDATE;
  IF NOT FOUND OR o.state = 'A' THEN
    RETURN 'lost';
  ELSIF o.state NOT IN ('F', 'R') THEN
    RETURN CASE WHEN by = ANY (string_to_array(own, ' ')) THEN 'owned' ELSE 'settled' END;
  END IF;
  PERFORM lk.settle_operation_1(of_id, of_guard, of_scope, by, for_fingerprint, for_number, to_state::"char",
    to_status::smallint, to_data, retention, most, for_holder,
    16); -- the transaction may last: others count in the parts below
  PERFORM set_config('lockkeeper.completed', own || ' ' || by, true);
  RETURN 'owned';
END $$;

-- enter_operation_1 begins an operation in the caller's transaction, which excludes others until it
-- ends, and writes nothing yet. It returns one of:
--   - started, with the number of the scope's records as remaining;
--   - locked;
--   - exists;
--   - full.
CREATE OR REPLACE FUNCTION lk.enter_operation_1(of_id text, of_scope text, by text, most int, OUT outcome text,
  OUT remaining bigint) LANGUAGE plpgsql AS $$
DECLARE
  o lk.operations;
  at bigint;
  room record;
BEGIN
  IF NOT pg_try_advisory_xact_lock(lk.operation_key_1(of_id)) THEN
    PERFORM pg_sleep(0.005); -- await_operation_1 has it for a moment
    IF NOT pg_try_advisory_xact_lock(lk.operation_key_1(of_id)) THEN
      outcome := 'locked';
      RETURN;
    END IF;
  END IF;
  SELECT * INTO o FROM lk.operations WHERE id = of_id;
  at := lk.now_us();
  IF o.expires > at AND (o.state <> 'A' OR by = ANY (o.withdrawn)) THEN
    outcome := 'exists';
    RETURN;
  END IF;
  IF of_scope <> '' AND most > 0 THEN
    room := lk.sum_1(of_scope, at);
    IF room.records >= most THEN
      outcome := 'full';
      remaining := greatest(room.first - at, 0);
      RETURN;
    END IF;
    remaining := room.records + 1;
  END IF;
  outcome := 'started';
  PERFORM set_config('lk.operation', of_id || by, true);
END $$;

-- leave_operation_1 makes the record of an operation that enter_operation_1 has begun in the same
-- transaction. It fails with LK002 if the transaction is another one, and with LK003 if there is a
-- record.
CREATE OR REPLACE FUNCTION lk.leave_operation_1(of_id text, of_guard text, of_scope text, by text, for_fingerprint text,
  to_state text, to_status int, to_data bytea,
  retention bigint, most int, most_bytes bigint, for_holder bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  at bigint := lk.now_us();
  new_slice bigint := lk.slice_1(at, retention);
  size bigint := coalesce(octet_length(to_data), 0);
BEGIN
  IF current_setting('lk.operation', true) IS DISTINCT FROM of_id || by THEN
    RAISE EXCEPTION 'the transaction of the operation was ended' USING ERRCODE = 'LK002';
  END IF;
  IF of_scope <> '' THEN
    PERFORM lk.add_record_1(of_scope, new_slice, most);
    IF size > 0 AND NOT lk.add_bytes_1(of_scope, new_slice, size, most_bytes) THEN
      to_state := 'N';
      to_data := NULL;
    END IF;
  END IF;
  INSERT INTO lk.operations AS o (id, guard, scope, state, effects, owner, fingerprint, number, lease_ends, lease,
    expires, slice, created, changed, status, data, holder)
    VALUES (of_id, of_guard, of_scope, to_state::"char", 'M', by, for_fingerprint, 1, 0, 0, at + retention, new_slice,
      at, at, to_status, to_data, for_holder)
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, effects = 'M', prior = false, owner = by,
      fingerprint = excluded.fingerprint, number = 1,
      lease_ends = 0, lease = 0, expires = excluded.expires, slice = excluded.slice, created = at,
      changed = greatest(at, o.changed + 1), marks = 0, status = excluded.status,
      data = excluded.data, holder = excluded.holder, inboxes = NULL
    WHERE (o.state = 'A' OR o.expires <= at) AND (by <> ALL (o.withdrawn)) IS NOT FALSE AND o.steps = 0;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the operation has a record' USING ERRCODE = 'LK003';
  END IF;
END $$;
