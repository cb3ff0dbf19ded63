-- Leases: see package store for the rule. Every step of a key locks its row of lk.leases first.
-- Then it reads the time, and ends expired holds. So the steps of a key are serial, and the counts
-- in the row are exact. The exception is a heartbeat that finds nothing to do: it does not lock the
-- row.
--
-- A key with one hold and no waiters is its row alone. One plain statement acquires it, and one
-- releases it. These do nothing if the row is in any other state, and leave that to
-- lk.step_lease_1. Times are µs.
--
-- A step that makes or extends no hold does not wait for the disk. If the server crashes and loses
-- the step, that is no worse than if the step had come later: a hold ends when it expires, and a
-- place is queued anew at its number. Later steps in the log are lost as well.

-- A key has one row here, and at most one in lk.leases: a transaction that adds a row there has
-- added or locked the row here. The index of lk.leases is not a unique one. A unique index would
-- compare each version of a hot row with all earlier ones that an old transaction keeps.
CREATE TABLE IF NOT EXISTS lk.lease_keys (
  id uuid PRIMARY KEY,                      -- the digest of name and key
  name bytea NOT NULL,
  key bytea                                 -- null if it is secret
);
CREATE INDEX IF NOT EXISTS lease_keys_by_name ON lk.lease_keys (name, id);

CREATE TABLE IF NOT EXISTS lk.leases (
  id uuid NOT NULL,
  fence bigint NOT NULL DEFAULT 0,          -- the largest so far
  busy boolean NOT NULL DEFAULT false,      -- it has rows in lk.lease_holds or lk.lease_places
  late bigint NOT NULL DEFAULT 0,           -- until when there are tombstones
  bound boolean NOT NULL DEFAULT false,     -- a transaction may be bound to a hold: see bind_lease_1
  -- The only hold. A second one moves it to lk.lease_holds, which has the same columns.
  holder text COLLATE "C",                  -- null if there is none
  process text COLLATE "C", first bigint, last bigint, ends bigint, since bigint, ttl bigint, weight int, place bigint,
  untaken boolean, label bytea,
  -- The last release, and whether the lease was held.
  released text COLLATE "C", released_fence bigint, released_held boolean,
  -- Counts. In a row that is not busy, only number and cutoff are valid.
  seen bigint NOT NULL DEFAULT 0,           -- the time of the last step
  used bigint NOT NULL DEFAULT 0,           -- the weight of all holds
  holds int NOT NULL DEFAULT 0,             -- in lk.lease_holds
  soonest bigint NOT NULL DEFAULT 0,        -- none of them ends before
  places int NOT NULL DEFAULT 0,            -- waiters
  head_reserve int NOT NULL DEFAULT 0,      -- none of them stands before: the index still has waiters that have left
  head_place bigint NOT NULL DEFAULT 0,
  room bigint NOT NULL DEFAULT 0,           -- none of them fits if that much is in use
  number bigint NOT NULL DEFAULT 0,         -- the largest place
  cutoff bigint NOT NULL DEFAULT 0,         -- the time of the last grant that ran out without being taken up
  stale bigint NOT NULL DEFAULT 0           -- when to look for processes that are gone
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS leases_by_id ON lk.leases (id);
ALTER TABLE lk.leases REPLICA IDENTITY FULL; -- a publication of all tables would not let it be changed otherwise

CREATE TABLE IF NOT EXISTS lk.lease_holds (
  lease uuid NOT NULL,
  id text COLLATE "C" NOT NULL,
  process text COLLATE "C" NOT NULL,
  first bigint NOT NULL,                    -- the fences
  last bigint NOT NULL,
  ends bigint NOT NULL,
  since bigint NOT NULL,                    -- when it was granted
  ttl bigint NOT NULL,
  weight int NOT NULL,
  place bigint NOT NULL,
  untaken boolean NOT NULL,                 -- it was pushed, and not taken up yet
  label bytea NOT NULL,
  PRIMARY KEY (lease, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);

CREATE TABLE IF NOT EXISTS lk.lease_places (
  lease uuid NOT NULL,
  id text COLLATE "C" NOT NULL,
  process text COLLATE "C" NOT NULL,
  reserve int NOT NULL,
  place bigint NOT NULL,
  weight int NOT NULL,
  room bigint NOT NULL,                     -- capacity less reserve: never less than the weight
  ttl bigint NOT NULL,
  fences int NOT NULL,
  since bigint NOT NULL,
  token bigint NOT NULL,                    -- of its process when it was queued
  label bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
-- Waiters that have left a queue stay in the indexes for a while, or for as long as an old
-- transaction lasts. With statistics of an empty queue the server would choose an index in which a
-- search passes all of it. So there is one index for each statement: id || '' is not id, and (lease
-- = my_key) IS TRUE is not lease = my_key.
CREATE INDEX IF NOT EXISTS lease_places_in_order ON lk.lease_places (lease, reserve, place, id);
CREATE INDEX IF NOT EXISTS lease_places_by_id ON lk.lease_places ((id || ''));
ALTER TABLE lk.lease_places REPLICA IDENTITY FULL;

-- The processes that wait for a key. A process that is not here is dead.
CREATE TABLE IF NOT EXISTS lk.lease_processes (
  lease uuid NOT NULL,
  process text COLLATE "C" NOT NULL,
  beat bigint NOT NULL,                     -- its last heartbeat
  till bigint NOT NULL,                     -- when it counts as dead without another one: span later
  span bigint NOT NULL,
  token bigint NOT NULL,                    -- of its last sign of life
  lapses int NOT NULL,                      -- grants in a row that ran out without being taken up
  PRIMARY KEY (lease, process)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);

-- Requests that were released while they might still be on their way.
CREATE TABLE IF NOT EXISTS lk.lease_tombstones (
  lease uuid NOT NULL,
  id text COLLATE "C" NOT NULL,
  until bigint NOT NULL,
  PRIMARY KEY (lease, id)
);

DO $$ BEGIN
  CREATE TYPE lk.lease_reply AS (
    outcome text,      -- acquire: granted, queued, taken, full or withdrawn; others: yes, no, or unknown for a release
    first bigint, last bigint, place bigint,
    lasts bigint,      -- granted: until it ends
    repeated boolean,  -- granted: it was granted before
    label bytea,       -- of a holder
    remaining bigint,  -- until the request may be granted
    used bigint, waiting bigint,
    next bigint,       -- until the first hold ends
    pushes text[],     -- channel, space and message
    at tid             -- of the key's row
  );
EXCEPTION WHEN duplicate_object THEN NULL; END $$;

-- bind_key_1 is the key of the advisory lock of the transactions that are bound to holds of a key.
CREATE OR REPLACE FUNCTION lk.bind_key_1(key uuid) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT hashtextextended('lk.lease ' || key, 0) $$;

-- bind_lease_1 binds the caller's transaction to a hold: nothing is granted until it ends. It
-- returns:
--   - bound;
--   - lost;
--   - mark, if mark_lease_1 is to be called in another transaction, and then this function again;
--   - isolation or timeout, if the transaction cannot be bound.
CREATE OR REPLACE FUNCTION lk.bind_lease_1(my_key uuid, my_id text, my_fence bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  l lk.leases;
  t bigint;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN 'isolation'; -- its snapshot may be older than the loss of the hold
  ELSIF current_setting('idle_in_transaction_session_timeout') = '0' THEN
    RETURN 'timeout';
  END IF;
  PERFORM pg_advisory_xact_lock_shared(lk.bind_key_1(my_key)); -- steps that grant have it for a moment
  SELECT * INTO l FROM lk.leases s WHERE s.id = my_key;
  t := lk.now_us();
  IF (l.holder = my_id AND l.first = my_fence AND l.ends > t) IS NOT TRUE
    AND NOT EXISTS (SELECT FROM lk.lease_holds s WHERE s.lease = my_key AND s.id = my_id AND s.first = my_fence
      AND s.ends > t) THEN
    RETURN 'lost';
  END IF;
  RETURN CASE WHEN l.bound THEN 'bound' ELSE 'mark' END;
END $$;

-- mark_lease_1 makes the next grant of a key look for bound transactions. Grants of other keys do
-- not look.
CREATE OR REPLACE FUNCTION lk.mark_lease_1(my_key uuid) RETURNS void LANGUAGE sql AS
$$ UPDATE lk.leases SET bound = true WHERE id = my_key $$;

-- Plans are kept, and a plan that was made for an empty table must not read all of a long queue
-- later: hence enable_seqscan.

-- step_lease_1 takes a step: acquire, release, renew, downgrade, revoke or beat. Arguments of the
-- caller begin with my. me is its process, which is its channel, and my_token its sign of life. The
-- caller gets its own grants in the reply.
CREATE OR REPLACE FUNCTION lk.step_lease_1(
  step text, my_key uuid, me text, my_token bigint, my_id text DEFAULT NULL,
  my_fence bigint DEFAULT 0,               -- 0: any
  my_ttl bigint DEFAULT 0, my_weight int DEFAULT 0, my_room bigint DEFAULT 0, my_reserve int DEFAULT 0,
  my_fences int DEFAULT 1, my_label bytea DEFAULT '', my_place bigint DEFAULT 0,
  my_queue boolean DEFAULT false, most int DEFAULT 0, my_span bigint DEFAULT 0,
  my_name bytea DEFAULT NULL,              -- acquire; release: leave a tombstone
  my_text bytea DEFAULT NULL,
  exact boolean DEFAULT false,             -- release: end nothing but a hold with this fence
  repeated boolean DEFAULT false,          -- release: an earlier call may have been carried out
  reset boolean DEFAULT false,             -- beat: remove the process's waiters
  whole boolean DEFAULT true,              -- it is all of its transaction
  my_at tid DEFAULT NULL                   -- where the key's row was seen last
) RETURNS lk.lease_reply LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
  most_grants CONSTANT int := 64;          -- in a step, and that a process has not taken up
  gone_after CONSTANT bigint := 30000000;  -- without a heartbeat
  late_for CONSTANT bigint := 60000000;
  grant_for CONSTANT bigint := 2000000;
  bound_check CONSTANT bigint := 100000;   -- the end of a bound transaction causes no push
  late CONSTANT boolean := step = 'release' AND my_name IS NOT NULL;
  t bigint;
  l record;                                -- the key's row, and where it is
  before record;
  h lk.lease_holds;                        -- the caller's hold
  w lk.lease_places;                       -- the caller's place, and then the one in turn
  p lk.lease_processes;
  alone boolean := false;                  -- h is in the row
  blocked boolean := false;                -- a transaction is bound to a hold
  waits boolean := false;                  -- the request was in the queue before
  extends boolean := false;
  grants lk.lease_holds[] := '{}';
  g lk.lease_holds;
  ahead bigint;                            -- the weights of all holders, and of waiters that stand before
  at_reserve int;                          -- the waiter in turn
  at_place bigint;
  at_id text := '';
  alive boolean;
  n bigint;
  sign bigint;
  lapsed text[];
  again boolean := false;
  r lk.lease_reply;
BEGIN
  r.outcome := CASE WHEN step = 'release' AND repeated THEN 'unknown' ELSE 'no' END;
  r.waiting := 0; r.next := 0; r.pushes := '{}';
  LOOP -- for the newest version: see newestOf in hints.go
    IF my_at IS NOT NULL THEN
      SELECT s.*, s.ctid AS at INTO l FROM lk.leases s
        WHERE s.ctid = (SELECT lk.newest_place_1('lk.leases', my_at)) AND s.id = my_key
        FOR NO KEY UPDATE;
      EXIT WHEN FOUND;
      -- Either the step that this one has waited for has moved the row, which stays locked all the
      -- same, or the place is of no use.
      my_at := CASE WHEN again THEN NULL ELSE my_at END;
      again := true;
      CONTINUE;
    END IF;
    SELECT s.*, s.ctid AS at INTO l FROM lk.leases s WHERE s.id >= my_key AND s.id <= my_key
      ORDER BY s.id DESC LIMIT 1 FOR NO KEY UPDATE;
    EXIT WHEN FOUND;
    IF step <> 'acquire' AND NOT late THEN
      RETURN r;
    END IF;
    INSERT INTO lk.lease_keys (id, name, key) VALUES (my_key, my_name, my_text)
      ON CONFLICT (id) DO UPDATE SET name = excluded.name; -- locks it
    INSERT INTO lk.leases (id) SELECT my_key WHERE NOT EXISTS (SELECT FROM lk.leases s WHERE s.id = my_key);
  END LOOP;
  t := lk.now_us();
  IF NOT l.busy THEN
    l.used := CASE WHEN l.holder IS NULL THEN 0 ELSE l.weight END;
  END IF;
  before := l;
  l.late := CASE WHEN l.late > t THEN least(l.late, t + late_for) ELSE 0 END;

  -- Expired holds end. A step of the clock to an earlier time extends nothing.
  IF l.holder IS NOT NULL THEN
    l.ends := least(l.ends, t + l.ttl);
    l.since := least(l.since, t);
    IF l.ends <= t THEN
      IF l.untaken THEN
        lapsed := ARRAY[l.process];
        l.cutoff := greatest(l.cutoff, l.since);
      END IF;
      l.holder := NULL;
      l.used := 0;
    END IF;
  END IF;
  IF t < l.seen THEN
    l.cutoff := least(l.cutoff, t);
    l.stale := least(l.stale, t);
    UPDATE lk.lease_processes s SET beat = least(s.beat, t), till = least(s.till, t + s.span)
      WHERE s.lease = my_key AND s.till > t;
    IF l.holds > 0 THEN
      UPDATE lk.lease_holds s SET ends = least(s.ends, t + s.ttl), since = least(s.since, t) WHERE s.lease = my_key;
      l.soonest := t;
    END IF;
    IF l.places > 0 THEN
      UPDATE lk.lease_places s SET since = least(s.since, t) WHERE s.lease = my_key;
    END IF;
  END IF;
  IF l.holds > 0 AND l.soonest <= t THEN
    WITH ended AS (DELETE FROM lk.lease_holds s WHERE s.lease = my_key AND s.ends <= t
      RETURNING s.weight, s.untaken, s.process, s.since)
      SELECT l.holds - count(*), l.used - coalesce(sum(e.weight), 0),
        greatest(l.cutoff, max(e.since) FILTER (WHERE e.untaken)),
        array_agg(DISTINCT e.process) FILTER (WHERE e.untaken)
      INTO l.holds, l.used, l.cutoff, lapsed FROM ended e;
    IF l.holds > 0 THEN
      l.soonest := (SELECT min(s.ends) FROM lk.lease_holds s WHERE s.lease = my_key);
    END IF;
  END IF;
  IF lapsed IS NOT NULL THEN
    UPDATE lk.lease_processes s SET lapses = least(s.lapses + 1, 40)
      WHERE s.lease = my_key AND s.process = ANY (lapsed);
  END IF;

  -- The caller's hold.
  IF step = 'revoke' THEN
    alone := l.holder IS NOT NULL AND my_fence BETWEEN l.first AND l.last;
    IF l.holds > 0 THEN
      SELECT * INTO h FROM lk.lease_holds s WHERE s.lease = my_key AND my_fence BETWEEN s.first AND s.last;
    END IF;
  ELSIF my_id IS NOT NULL THEN
    alone := l.holder IS NOT NULL AND l.holder = my_id;
    IF l.holds > 0 THEN
      SELECT * INTO h FROM lk.lease_holds s WHERE s.lease = my_key AND s.id = my_id;
    END IF;
  END IF;
  IF alone THEN
    h := ROW(my_key, l.holder, l.process, l.first, l.last, l.ends, l.since, l.ttl, l.weight, l.place, l.untaken,
      l.label);
  END IF;

  -- The step's changes of holds and waiters.
  IF step = 'acquire' THEN
    IF l.late > t AND EXISTS (SELECT FROM lk.lease_tombstones s
      WHERE s.lease = my_key AND s.id = my_id AND s.until > t) THEN
      r.outcome := 'withdrawn';
    ELSIF h.id IS NOT NULL THEN
      r.outcome := 'granted';
      r.repeated := true;
      extends := true;
    ELSIF l.places > 0 THEN
      UPDATE lk.lease_places s SET room = my_room, ttl = my_ttl, token = greatest(s.token, my_token)
        WHERE s.id || '' = my_id AND (s.lease = my_key) IS TRUE RETURNING * INTO w;
      IF FOUND THEN
        waits := true;
        l.room := greatest(l.room, my_room);
        r.place := w.place;
        INSERT INTO lk.lease_processes AS s (lease, process, beat, till, span, token, lapses)
          VALUES (my_key, me, t, t + my_span, my_span, my_token, 0)
          ON CONFLICT (lease, process) DO UPDATE SET beat = t, till = t + my_span, span = my_span,
            token = greatest(s.token, my_token);
      END IF;
    END IF;
  ELSIF step = 'renew' OR step = 'downgrade' THEN
    IF h.first = my_fence THEN
      r.outcome := 'yes';
      extends := true;
      IF my_weight > 0 AND my_weight < h.weight THEN
        l.used := l.used - h.weight + my_weight;
        h.weight := my_weight;
      END IF;
    END IF;
  ELSIF step = 'release' OR step = 'revoke' THEN
    IF h.id IS NOT NULL AND NOT (exact AND h.first <> my_fence) THEN
      r.outcome := CASE WHEN step = 'revoke' OR my_fence = 0 OR my_fence = h.first THEN 'yes' ELSE 'no' END;
      IF step = 'revoke' THEN
        r.pushes := ARRAY[format('%s lost %s %s', h.process, h.id, h.first)];
      END IF;
      IF h.untaken THEN
        UPDATE lk.lease_processes s SET lapses = 0 WHERE s.lease = my_key AND s.process = h.process AND s.lapses > 0;
      END IF;
      l.used := l.used - h.weight;
      IF alone THEN
        l.holder := NULL;
      ELSE
        DELETE FROM lk.lease_holds s WHERE s.lease = my_key AND s.id = h.id;
        l.holds := l.holds - 1;
      END IF;
      l.released := h.id;
      l.released_fence := h.first;
      l.released_held := step = 'release' AND r.outcome = 'yes';
    ELSIF step = 'release' AND NOT exact THEN
      n := 0;
      IF l.places > 0 THEN
        DELETE FROM lk.lease_places s WHERE s.id || '' = my_id AND (s.lease = my_key) IS TRUE;
        GET DIAGNOSTICS n = ROW_COUNT;
        l.places := l.places - n;
      END IF;
      IF n > 0 THEN
        r.outcome := 'no';
      ELSIF l.released = my_id AND (my_fence = 0 OR my_fence = l.released_fence) THEN
        r.outcome := CASE WHEN l.released_held THEN 'yes' ELSE 'no' END;
      END IF;
    END IF;
    IF late THEN
      INSERT INTO lk.lease_tombstones (lease, id, until) VALUES (my_key, my_id, t + late_for)
        ON CONFLICT (lease, id) DO UPDATE SET until = excluded.until;
      l.late := t + late_for;
    END IF;
  ELSE -- a heartbeat
    UPDATE lk.lease_processes s SET beat = t, till = t + my_span, span = my_span, token = greatest(s.token, my_token)
      WHERE s.lease = my_key AND s.process = me;
    IF reset AND l.places > 0 THEN
      DELETE FROM lk.lease_places s WHERE s.lease = my_key AND s.process = me;
      GET DIAGNOSTICS n = ROW_COUNT;
      l.places := l.places - n;
    END IF;
    IF l.stale <= t THEN
      DELETE FROM lk.lease_processes s WHERE s.lease = my_key AND s.beat + greatest(gone_after, s.span) <= t;
      DELETE FROM lk.lease_places s
        WHERE s.lease = my_key AND NOT EXISTS (SELECT FROM lk.lease_processes o
          WHERE o.lease = my_key AND o.process = s.process);
      GET DIAGNOSTICS n = ROW_COUNT;
      l.places := l.places - n;
      l.stale := t + gone_after / 3;
    END IF;
  END IF;
  IF extends THEN
    IF h.untaken THEN
      UPDATE lk.lease_processes s SET lapses = 0 WHERE s.lease = my_key AND s.process = h.process AND s.lapses > 0;
    END IF;
    h.ends := t + my_ttl;
    IF alone THEN
      l.ends := h.ends;
      l.ttl := my_ttl;
      l.weight := h.weight;
      l.untaken := false;
    ELSE
      UPDATE lk.lease_holds s SET ends = h.ends, ttl = my_ttl, weight = h.weight, untaken = false
        WHERE s.lease = my_key AND s.id = h.id;
      l.soonest := least(l.soonest, h.ends);
    END IF;
  END IF;

  -- Nothing is granted while a transaction is bound to a hold, even to one that has ended.
  IF l.bound AND (l.places > 0 OR step = 'acquire') THEN
    blocked := NOT pg_try_advisory_xact_lock(lk.bind_key_1(my_key));
    l.bound := blocked;
  END IF;

  -- Grants to waiters.
  ahead := l.used;
  at_reserve := l.head_reserve;
  at_place := l.head_place - 1;
  WHILE l.places > 0 AND ahead < l.room AND NOT blocked LOOP
    SELECT * INTO w FROM lk.lease_places s WHERE s.lease = my_key
      AND (s.reserve, s.place, s.id) > (at_reserve, at_place, at_id)
      ORDER BY s.reserve, s.place, s.id LIMIT 1;
    EXIT WHEN NOT FOUND;
    IF at_id = '' THEN
      l.head_reserve := w.reserve;
      l.head_place := w.place;
    END IF;
    at_reserve := w.reserve;
    at_place := w.place;
    at_id := w.id;
    IF ahead + w.weight > w.room THEN
      -- It blocks its tier. The waiters in the tier count for the next one.
      EXIT WHEN NOT EXISTS (SELECT FROM lk.lease_places s WHERE s.lease = my_key AND s.reserve > at_reserve);
      ahead := ahead +
        (SELECT sum(s.weight) FROM lk.lease_places s
          WHERE s.lease = my_key AND s.reserve = at_reserve AND s.place >= at_place);
      at_place := 9223372036854775807;
      CONTINUE;
    END IF;
    SELECT * INTO p FROM lk.lease_processes s WHERE s.lease = my_key AND s.process = w.process;
    alive := FOUND;
    IF alive AND w.process <> me AND (p.beat < l.cutoff OR p.till <= t) THEN
      sign := (SELECT max(s.since) FROM lk.lease_places s
        WHERE s.lease = my_key AND s.process = w.process
          AND (s.reserve, s.place) >= (l.head_reserve, l.head_place)); -- it counts as a heartbeat
      alive := greatest(p.beat, sign) >= l.cutoff AND greatest(p.till, sign + p.span) > t;
    END IF;
    IF NOT alive THEN
      DELETE FROM lk.lease_places s WHERE s.lease = my_key AND s.process = w.process;
      GET DIAGNOSTICS n = ROW_COUNT;
      l.places := l.places - n;
      CONTINUE;
    END IF;
    n := cardinality(grants);
    IF n = most_grants OR w.process <> me AND l.holds + n >= most_grants AND most_grants <=
        (SELECT count(*) FROM lk.lease_holds s WHERE s.lease = my_key AND s.process = w.process AND s.untaken) +
        (SELECT count(*) FROM unnest(grants) s WHERE s.process = w.process) THEN
      IF n > 0 THEN
        r.pushes := r.pushes || format('%s beat %s', w.process, my_key); -- its heartbeat continues
      END IF;
      EXIT;
    END IF;
    g := ROW(my_key, w.id, w.process, greatest(l.fence + 1, t), 0, 0, t, least(grant_for << least(p.lapses, 40), w.ttl),
      w.weight, w.place, true, w.label);
    g.last := CASE WHEN g.first = t THEN t + w.fences - 1 ELSE g.first END; -- more would be ahead of the clock
    IF waits AND w.id = my_id THEN -- the reply says so
      g.ttl := my_ttl;
      g.untaken := false;
    END IF;
    g.ends := t + g.ttl;
    IF NOT g.untaken THEN
      h := g;
      r.outcome := 'granted';
      r.repeated := true;
    ELSE
      r.pushes := r.pushes || format('%s lease %s %s %s %s %s %s %s', w.process, w.id, g.first, g.last, w.place, g.ttl,
        greatest(p.token, w.token, CASE WHEN w.process = me THEN my_token END), my_key);
    END IF;
    l.fence := g.last;
    grants := grants || g;
    DELETE FROM lk.lease_places s
      WHERE s.lease = my_key AND s.reserve = w.reserve AND s.place = w.place AND s.id = w.id;
    l.places := l.places - 1;
    l.used := l.used + w.weight;
    ahead := ahead + w.weight;
  END LOOP;
  IF l.places = 0 THEN
    l.room := 0;
  END IF;

  -- A new request is granted, queued or refused.
  IF step = 'acquire' AND waits AND r.outcome = 'no' THEN
    r.outcome := 'queued';
  ELSIF step = 'acquire' AND r.outcome = 'no' THEN
    alive := true; -- nothing is before it
    ahead := l.used;
    IF l.places > 0 THEN
      alive := NOT EXISTS (SELECT FROM lk.lease_places s WHERE s.lease = my_key AND s.reserve = my_reserve
        AND (s.reserve, s.place) >= (l.head_reserve, l.head_place) AND (my_place = 0 OR s.place < my_place));
      IF alive AND my_reserve > 0 THEN
        ahead := ahead + coalesce((SELECT sum(s.weight) FROM lk.lease_places s
          WHERE s.lease = my_key AND s.reserve < my_reserve), 0);
      END IF;
    END IF;
    IF alive AND ahead + my_weight <= my_room AND NOT blocked THEN
      g := ROW(my_key, my_id, me, greatest(l.fence + 1, t), 0, t + my_ttl, t, my_ttl, my_weight, my_place, false,
        my_label);
      g.last := CASE WHEN g.first = t THEN t + my_fences - 1 ELSE g.first END;
      l.fence := g.last;
      l.used := l.used + my_weight;
      grants := grants || g;
      h := g;
      r.outcome := 'granted';
    ELSIF my_queue OR my_place > 0 THEN
      IF my_place = 0 AND most > 0 AND l.places >= most THEN
        DELETE FROM lk.lease_places s WHERE s.lease = my_key AND s.process IN (
          SELECT q.process FROM lk.lease_places q LEFT JOIN lk.lease_processes o ON o.lease = q.lease
            AND o.process = q.process
            WHERE q.lease = my_key AND q.process <> me GROUP BY q.process, o.beat, o.till, o.span
            HAVING o.beat IS NULL OR greatest(o.beat, max(q.since)) < l.cutoff
              OR greatest(o.till, max(q.since) + o.span) <= t);
        GET DIAGNOSTICS n = ROW_COUNT;
        l.places := l.places - n;
      END IF;
      IF my_place = 0 AND most > 0 AND l.places >= most THEN
        r.outcome := 'full';
      ELSE
        r.outcome := 'queued';
        r.place := CASE WHEN my_place > 0 THEN my_place ELSE greatest(l.number + 1, t) END;
        IF l.places = 0 THEN
          l.stale := t + gone_after / 3;
        END IF;
        IF l.places = 0 OR (my_reserve, r.place) < (l.head_reserve, l.head_place) THEN
          l.head_reserve := my_reserve;
          l.head_place := r.place;
        END IF;
        l.number := greatest(l.number, r.place);
        l.places := l.places + 1;
        l.room := greatest(l.room, my_room);
        INSERT INTO lk.lease_places (lease, id, process, reserve, place, weight, room, ttl, fences, since, token, label)
          VALUES (my_key, my_id, me, my_reserve, r.place, my_weight, my_room, my_ttl, my_fences, t, my_token, my_label);
        INSERT INTO lk.lease_processes AS s (lease, process, beat, till, span, token, lapses)
          VALUES (my_key, me, t, t + my_span, my_span, my_token, 0)
          ON CONFLICT (lease, process) DO UPDATE SET beat = t, till = t + my_span, span = my_span,
            token = greatest(s.token, my_token)
          WHERE s.till <= t OR s.beat < l.cutoff;
      END IF;
    ELSE
      r.outcome := 'taken';
    END IF;
  END IF;

  -- New holds.
  IF cardinality(grants) = 1 AND l.holder IS NULL AND l.holds = 0 THEN
    l.holder := g.id; l.process := g.process; l.first := g.first; l.last := g.last;
    l.ends := g.ends; l.since := g.since; l.ttl := g.ttl;
    l.weight := g.weight; l.place := g.place; l.untaken := g.untaken; l.label := g.label;
  ELSIF cardinality(grants) > 0 THEN
    IF l.holder IS NOT NULL THEN
      g := ROW(my_key, l.holder, l.process, l.first, l.last, l.ends, l.since, l.ttl, l.weight, l.place, l.untaken,
        l.label);
      grants := grants || g;
      l.holder := NULL;
    END IF;
    INSERT INTO lk.lease_holds SELECT * FROM unnest(grants);
    n := (SELECT min(s.ends) FROM unnest(grants) s);
    l.soonest := CASE WHEN l.holds > 0 THEN least(l.soonest, n) ELSE n END;
    l.holds := l.holds + cardinality(grants);
  END IF;

  -- The reply.
  IF l.holder IS NOT NULL THEN
    r.next := l.ends - t;
  ELSIF l.holds > 0 THEN
    r.next := greatest(l.soonest - t, 1);
  ELSIF blocked THEN
    r.next := bound_check;
  END IF;
  IF step = 'beat' THEN
    r.waiting := CASE WHEN l.places = 0 THEN 0 ELSE (SELECT count(*) FROM lk.lease_places s
      WHERE s.lease = my_key AND s.process = me AND (s.reserve, s.place) >= (l.head_reserve, l.head_place)) END;
  ELSIF r.outcome = 'granted' THEN
    r.first := h.first; r.last := h.last; r.place := h.place; r.lasts := h.ends - t;
  ELSIF step = 'acquire' AND r.outcome <> 'withdrawn' THEN
    r.used := l.used;
    r.waiting := l.places - CASE WHEN r.outcome = 'queued' THEN 1 ELSE 0 END;
    r.remaining := 0;
    IF l.holder IS NOT NULL THEN
      r.label := l.label;
      r.remaining := r.next;
    ELSIF l.holds > 0 THEN
      n := least(l.used, l.used + my_weight - my_room);
      SELECT s.label, greatest(s.ends - t, 0) INTO r.label, r.remaining FROM
        (SELECT o.label, o.ends, o.id, sum(o.weight) OVER (ORDER BY o.ends, o.id) AS freed FROM lk.lease_holds o
          WHERE o.lease = my_key) s
        WHERE s.freed >= n ORDER BY s.ends, s.id LIMIT 1;
    END IF;
  END IF;

  l.busy := l.places > 0 OR l.holds > 0;
  IF whole AND cardinality(grants) = 0 AND NOT extends AND NOT late AND step <> 'revoke' THEN
    PERFORM set_config('synchronous_commit', 'off', true); -- see above
  END IF;
  IF l IS DISTINCT FROM before THEN
    l.seen := t;
    UPDATE lk.leases s SET fence = l.fence, busy = l.busy, late = l.late, bound = l.bound, holder = l.holder,
      process = l.process, first = l.first, last = l.last, ends = l.ends, since = l.since, ttl = l.ttl,
      weight = l.weight, place = l.place, untaken = l.untaken, label = l.label, released = l.released,
      released_fence = l.released_fence, released_held = l.released_held, seen = l.seen, used = l.used, holds = l.holds,
      soonest = l.soonest, places = l.places, head_reserve = l.head_reserve, head_place = l.head_place, room = l.room,
      number = l.number, cutoff = l.cutoff, stale = l.stale
      WHERE s.ctid = l.at RETURNING s.ctid INTO l.at;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'the row of lease % is not where it was locked', my_key;
    END IF;
  END IF;
  r.at := l.at;
  RETURN r;
END $$;

-- lock_leases_1 locks the keys of several steps in one order, and returns the locked ones. A key
-- that another transaction has locked must not delay the others, and is left to a call of its own.
CREATE OR REPLACE FUNCTION lk.lock_leases_1(keys uuid[]) RETURNS uuid[] LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
  IF cardinality(keys) = 1 THEN
    RETURN keys;
  END IF;
  RETURN ARRAY(SELECT s.id FROM lk.leases s WHERE s.id = ANY (keys) ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED) ||
    ARRAY(SELECT a.key FROM unnest(keys) a (key) WHERE NOT EXISTS (SELECT FROM lk.leases s WHERE s.id = a.key));
END $$;

-- renew_leases_1 renews holds. held is null if the key is locked. A step renews a hold that the
-- plain statements do not renew.
CREATE OR REPLACE FUNCTION lk.renew_leases_1(me text, my_token bigint, keys uuid[], ids text[], fences bigint[],
  ttls bigint[])
RETURNS TABLE (number bigint, held boolean, pushes text[]) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
  t bigint;
  locked uuid[] := lk.lock_leases_1(keys);
  done bigint[];
  u record;
  r lk.lease_reply;
BEGIN
  t := lk.now_us();
  WITH mine AS (SELECT * FROM unnest(keys, ids, fences, ttls) WITH ORDINALITY AS a (key, id, fence, ttl, n)
      WHERE cardinality(keys) > 1 AND a.key = ANY (locked)),
    lone AS (UPDATE lk.leases s SET ends = t + m.ttl, ttl = m.ttl FROM mine m
      WHERE s.id = m.key AND s.holder = m.id AND s.first = m.fence AND NOT s.untaken AND s.ends > t
        AND s.ends <= t + s.ttl RETURNING m.n),
    beside AS (UPDATE lk.lease_holds s SET ends = t + m.ttl, ttl = m.ttl FROM mine m
      WHERE s.lease = m.key AND s.id = m.id AND s.first = m.fence AND NOT s.untaken AND s.ends > t
        AND s.ends <= t + least(s.ttl, m.ttl)
      RETURNING m.n)
    SELECT coalesce(array_agg(a.n), '{}') INTO done FROM (SELECT n FROM lone UNION ALL SELECT n FROM beside) a;
  FOR u IN SELECT * FROM unnest(keys, ids, fences, ttls) WITH ORDINALITY AS a (key, id, fence, ttl, n)
    ORDER BY a.key, a.n LOOP
    number := u.n;
    held := u.n = ANY (done);
    pushes := '{}';
    IF NOT u.key = ANY (locked) THEN
      held := NULL;
    ELSIF NOT held THEN
      r := lk.step_lease_1('renew', u.key, me, my_token, u.id, u.fence, u.ttl, whole => false);
      held := r.outcome = 'yes';
      pushes := r.pushes;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- release_leases_1 releases requests. outcome is null if the key is locked. names and texts are not
-- null for keys whose release leaves a tombstone.
CREATE OR REPLACE FUNCTION lk.release_leases_1(me text, my_token bigint, keys uuid[], ids text[], fences bigint[],
  repeats boolean[], names bytea[], texts bytea[])
RETURNS TABLE (number bigint, outcome text, pushes text[]) LANGUAGE plpgsql AS $$
DECLARE
  locked uuid[] := lk.lock_leases_1(keys);
  u record;
  r lk.lease_reply;
BEGIN
  FOR u IN SELECT * FROM unnest(keys, ids, fences, repeats, names, texts)
    WITH ORDINALITY AS a (key, id, fence, repeated, name, text, n)
      ORDER BY a.key, a.n LOOP
    number := u.n;
    outcome := NULL;
    pushes := '{}';
    IF u.key = ANY (locked) THEN
      r := lk.step_lease_1('release', u.key, me, my_token, u.id, u.fence, my_name => u.name, my_text => u.text,
        repeated => u.repeated, whole => cardinality(keys) = 1);
      outcome := r.outcome;
      pushes := r.pushes;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- beat_leases_1 sends heartbeats of a process for the keys that it waits for. They end expired
-- holds, and create nothing. If there is nothing to do, they do not lock the keys. waiting is null
-- if the key is locked.
CREATE OR REPLACE FUNCTION lk.beat_leases_1(me text, my_token bigint, my_span bigint, keys uuid[], resets boolean[])
RETURNS TABLE (number bigint, waiting bigint, next bigint, pushes text[])
  LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
  t bigint := lk.now_us();
  quiet uuid[];
  locked uuid[];
  u record;
  r lk.lease_reply;
BEGIN
  quiet := ARRAY(SELECT p.lease FROM lk.lease_processes p JOIN lk.leases l ON l.id = p.lease
    WHERE p.lease = ANY (keys) AND p.process = me AND p.beat <= t AND l.places > 0 AND l.used >= l.room AND l.seen <= t
      AND l.stale > t
      AND CASE WHEN l.holder IS NULL THEN l.holds > 0 AND l.soonest > t ELSE l.ends > t AND l.ends <= t + l.ttl END
      AND EXISTS (SELECT FROM lk.lease_places s
        WHERE s.lease = p.lease AND s.process = me AND (s.reserve, s.place) >= (l.head_reserve, l.head_place))
    ORDER BY p.lease FOR NO KEY UPDATE OF p SKIP LOCKED);
  UPDATE lk.lease_processes p SET beat = t, till = t + my_span, span = my_span, token = greatest(p.token, my_token)
    WHERE p.lease = ANY (quiet) AND p.process = me;
  locked := ARRAY(SELECT a.key FROM unnest(keys, resets) a (key, reset) WHERE a.reset OR NOT a.key = ANY (quiet));
  IF cardinality(locked) = 0 THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF cardinality(keys) > 1 THEN
    locked := ARRAY(SELECT s.id FROM lk.leases s WHERE s.id = ANY (locked) ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  FOR u IN SELECT a.key, a.reset, a.n, a.key = ANY (quiet) AND NOT a.reset AS quiet,
        CASE WHEN l.holder IS NULL THEN l.soonest ELSE l.ends END - t AS left,
        CASE WHEN a.key = ANY (quiet) THEN (SELECT count(*) FROM lk.lease_places s
          WHERE s.lease = a.key AND s.process = me
            AND (s.reserve, s.place) >= (l.head_reserve, l.head_place)) END AS places,
        l.id IS NOT NULL AS known
      FROM unnest(keys, resets) WITH ORDINALITY AS a (key, reset, n) LEFT JOIN lk.leases l ON l.id = a.key
        ORDER BY a.key LOOP
    number := u.n;
    IF u.quiet AND u.places > 0 THEN
      waiting := u.places;
      next := greatest(u.left, 1);
      pushes := '{}';
    ELSIF u.known AND NOT u.key = ANY (locked) THEN
      waiting := NULL;
      next := 0;
      pushes := '{}';
    ELSE
      r := lk.step_lease_1('beat', u.key, me, my_token, my_span => my_span, reset => u.reset,
        whole => cardinality(keys) = 1);
      waiting := r.waiting;
      next := r.next;
      pushes := r.pushes;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- inspect_leases_1 returns for each key that exists:
--   - a row of the kind "key", with the weight in use and the number of waiters (last);
--   - its holds and its waiters, at most so many of each.
--
-- It changes nothing.
CREATE OR REPLACE FUNCTION lk.inspect_leases_1(keys uuid[], most bigint)
RETURNS TABLE (lease uuid, kind text, key bytea, first bigint, last bigint, weight bigint, reserve int, label bytea,
  age bigint, remaining bigint)
LANGUAGE sql AS $$
  WITH now AS MATERIALIZED (SELECT lk.now_us() AS t),
    held AS MATERIALIZED (
      SELECT l.id AS lease, l.first, l.last, l.weight, l.label, l.since, least(l.ends, n.t + l.ttl) AS ends
        FROM lk.leases l, now n WHERE l.id = ANY (keys) AND l.holder IS NOT NULL AND l.ends > n.t
      UNION ALL
      SELECT h.lease, h.first, h.last, h.weight, h.label, h.since, least(h.ends, n.t + h.ttl)
        FROM lk.lease_holds h, now n WHERE h.lease = ANY (keys) AND h.ends > n.t)
  SELECT l.id, 'key', k.key, 0::bigint, l.places::bigint,
      coalesce((SELECT sum(h.weight) FROM held h WHERE h.lease = l.id), 0)::bigint, 0, NULL::bytea, 0::bigint, 0::bigint
    FROM lk.leases l JOIN lk.lease_keys k ON k.id = l.id WHERE l.id = ANY (keys)
  UNION ALL
  SELECT k.key, 'hold', NULL, h.first, h.last, h.weight, 0, h.label, greatest(n.t - h.since, 0), h.ends - n.t
    FROM now n, unnest(keys) k (key), LATERAL (SELECT * FROM held h WHERE h.lease = k.key ORDER BY h.ends LIMIT most) h
  UNION ALL
  SELECT k.key, 'waiter', NULL, 0, 0, w.weight, w.reserve, w.label, greatest(n.t - w.since, 0), 0
    FROM now n, unnest(keys) k (key),
      LATERAL (SELECT * FROM lk.lease_places w WHERE w.lease = k.key ORDER BY w.reserve, w.place, w.id LIMIT most) w
$$;

-- sweep_leases_1 takes a step for keys that have holds or waiters, and with which no process is
-- concerned any more.
CREATE OR REPLACE FUNCTION lk.sweep_leases_1(most bigint) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
DECLARE
  t bigint := lk.now_us() - 60000000;
  one uuid;
BEGIN
  FOR one IN SELECT s.lease FROM lk.lease_holds s WHERE s.ends < t UNION
      SELECT s.lease FROM lk.lease_places s
        WHERE s.since < t AND NOT EXISTS (SELECT FROM lk.lease_processes o
          WHERE o.lease = s.lease AND o.process = s.process)
      ORDER BY 1 LIMIT most LOOP
    UPDATE lk.leases s SET stale = 0 WHERE s.id = one;
    PERFORM lk.step_lease_1('beat', one, '', 0, whole => false);
    RETURN NEXT one;
  END LOOP;
END $$;
