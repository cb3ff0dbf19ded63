-- Delayed tasks. Times are µs of the server's clock, spans are µs.

-- The tasks that wait or run. due is when the task is due, or the end of the lease of the attempt
-- that runs. So a task whose lease has ended is due without a further step. A task that follows it,
-- or a cancel, then comes into force with the next step that meets the row: see lock_task_1 and
-- take_tasks_1.
CREATE TABLE IF NOT EXISTS lk.tasks (
  queue text COLLATE "C" NOT NULL,
  key bytea NOT NULL,
  put text COLLATE "C" NOT NULL,            -- the ID of the task
  due bigint NOT NULL,
  since bigint NOT NULL DEFAULT 0,          -- when the last attempt was due
  fence bigint NOT NULL DEFAULT 0,          -- of the last take
  next_due bigint,                          -- of the task that follows, as the other columns of next
  attempt int NOT NULL DEFAULT 0,
  outcome "char" NOT NULL,                  -- of the put, for its repeats: C created, M moved, F follows
  running boolean NOT NULL DEFAULT false,
  tried boolean NOT NULL DEFAULT false,     -- an owner has had it
  cancelled boolean NOT NULL DEFAULT false, -- no further attempt begins
  owner text COLLATE "C" NOT NULL DEFAULT '', -- of the last attempt
  holder bytea NOT NULL DEFAULT '',
  next_ran boolean NOT NULL DEFAULT false,  -- perhaps, before the put of what follows
  next_put text COLLATE "C",                -- null if nothing follows
  next_payload bytea,
  payload bytea NOT NULL,
  PRIMARY KEY (queue, key)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
-- Plans are kept, and with statistics of a small table the server would choose a plan that reads
-- all of a large one. So each statement has one plan:
--   - queue || '' is not queue, so that one index is for searches by time, and one for searches by
--     key;
--   - rows that were locked are found in their places (ctid = ANY);
--   - tasks of a list are searched one by one: a subquery with FOR UPDATE, or OFFSET 0, is not
--     joined.
CREATE INDEX IF NOT EXISTS tasks_in_order ON lk.tasks ((queue || ''), due);

CREATE TABLE IF NOT EXISTS lk.buried_tasks (
  queue text COLLATE "C",
  key bytea,
  put text COLLATE "C" NOT NULL,
  attempt int NOT NULL,
  fence bigint NOT NULL,
  buried bigint NOT NULL,
  expires bigint NOT NULL,
  reason bytea NOT NULL,
  payload bytea NOT NULL,
  PRIMARY KEY (queue, key)
);
CREATE INDEX IF NOT EXISTS buried_tasks_expires ON lk.buried_tasks (expires);

-- The last cancel of a key, for its repeats and those of the last put that it has cancelled.
CREATE TABLE IF NOT EXISTS lk.cancelled_tasks (
  queue text COLLATE "C",
  key bytea,
  id text COLLATE "C" NOT NULL,
  put text COLLATE "C",                     -- null if the key had no task in the last cancels
  outcome "char" NOT NULL,                  -- A absent, P prevented, E ended, R running
  ends bigint NOT NULL,
  PRIMARY KEY (queue, key)
);
CREATE INDEX IF NOT EXISTS cancelled_tasks_ends ON lk.cancelled_tasks (ends);

-- The processes that wait for tasks of a queue.
CREATE TABLE IF NOT EXISTS lk.task_waiters (
  queue text COLLATE "C",
  inbox text COLLATE "C",
  due bigint NOT NULL,                      -- of the first task, as the process knows it
  ends bigint NOT NULL,
  PRIMARY KEY (queue, inbox)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- The puts of a transaction of the caller's. Its commit removes the rows, and wakes processes.
CREATE TABLE IF NOT EXISTS lk.task_wakes (
  transaction xid8 DEFAULT pg_current_xact_id(),
  queue text COLLATE "C",
  due bigint,
  PRIMARY KEY (transaction, queue, due)
);

-- wake_tasks_1 returns up to four inboxes that wait for a later task, and removes them. They get a
-- push. Functions in SQL would be planned at each call.
CREATE OR REPLACE FUNCTION lk.wake_tasks_1(of_queue text, of_due bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  at bigint := lk.now_us();
  told text[];
BEGIN
  IF NOT EXISTS (SELECT FROM lk.task_waiters w WHERE w.queue = of_queue AND w.due > of_due AND w.ends > at) THEN
    RETURN NULL;
  END IF;
  SELECT array_agg(n.inbox) INTO told FROM (SELECT w.inbox FROM lk.task_waiters w
    WHERE w.queue = of_queue AND w.due > of_due AND w.ends > at ORDER BY w.ends DESC LIMIT 4 FOR UPDATE SKIP LOCKED) n;
  DELETE FROM lk.task_waiters w WHERE w.queue = of_queue AND w.inbox = ANY (told);
  RETURN told;
END $$;

-- wake_at_commit_1 wakes the processes that wait for a later task. It runs at the commit, so that
-- it finds processes that have begun to wait since the put, and locks their rows for a moment only.
CREATE OR REPLACE FUNCTION lk.wake_at_commit_1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM lk.task_wakes w WHERE w.transaction = NEW.transaction AND w.queue = NEW.queue AND w.due = NEW.due;
  PERFORM pg_notify(inbox, 'due ' || NEW.queue) FROM unnest(lk.wake_tasks_1(NEW.queue, NEW.due)) inbox;
  RETURN NULL;
END $$;

DO $$ BEGIN
  CREATE CONSTRAINT TRIGGER wake_at_commit AFTER INSERT ON lk.task_wakes DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION lk.wake_at_commit_1();
EXCEPTION WHEN duplicate_object THEN NULL; END $$;

-- announce_task_1 wakes the processes that wait for a task that is due later than this one. It
-- returns the pushes, which the caller sends after the commit; none in a transaction of the
-- caller's, whose commit sends them.
CREATE OR REPLACE FUNCTION lk.announce_task_1(of_queue text, of_due bigint, at_commit boolean) RETURNS text[]
  LANGUAGE plpgsql AS $$
BEGIN
  IF at_commit THEN
    INSERT INTO lk.task_wakes (queue, due) VALUES (of_queue, of_due) ON CONFLICT DO NOTHING;
    RETURN NULL;
  END IF;
  RETURN (SELECT array_agg(inbox || ' due ' || of_queue) FROM unnest(lk.wake_tasks_1(of_queue, of_due)) inbox);
END $$;

-- end_tasks_1 ends the attempts at tasks, whose rows the caller has locked: a task that follows
-- takes the place of the one before, and is due after its end, and a cancelled one is removed.
-- Others it leaves. So no task becomes due at an earlier time than the tasks that were taken: see
-- queueHints in taskhints.go.
CREATE OR REPLACE FUNCTION lk.end_tasks_1(places tid[], at bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM lk.tasks t WHERE t.ctid = ANY (places) AND t.running AND t.cancelled AND t.next_put IS NULL;
  UPDATE lk.tasks t SET put = t.next_put, payload = t.next_payload, due = greatest(t.next_due, least(t.due, at)),
    outcome = 'F', attempt = 0, running = false, tried = t.next_ran OR t.due <= at, cancelled = false, owner = '', holder = '',
    next_put = NULL, next_payload = NULL, next_due = NULL
    WHERE t.ctid = ANY (places) AND t.running AND t.next_put IS NOT NULL;
END $$;

-- lock_task_1 locks the row of a key, and reads the clock. There is a row if put is not null.
CREATE OR REPLACE FUNCTION lk.lock_task_1(of_queue text, of_key bytea, OUT put text, OUT next_put text, OUT due bigint,
  OUT running boolean, OUT runs boolean, OUT owner text, OUT outcome text, OUT at bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  t record;
BEGIN
  LOOP
    SELECT s.ctid AS place, s.put, s.next_put, s.due, s.running, s.cancelled, s.owner, s.outcome INTO t
      FROM lk.tasks s WHERE s.queue = of_queue AND s.key = of_key FOR UPDATE;
    at := lk.now_us();
    IF NOT FOUND THEN
      RETURN;
    END IF;
    EXIT WHEN NOT t.running OR t.due > at OR NOT t.cancelled AND t.next_put IS NULL;
    PERFORM lk.end_tasks_1(ARRAY[t.place], at);
  END LOOP;
  put := t.put;
  next_put := t.next_put;
  due := t.due;
  running := t.running;
  runs := t.running AND t.due > at;
  owner := t.owner;
  outcome := t.outcome;
END $$;

-- put_task_1 is PutTask. at_commit is for a transaction of the caller's. size is the number of the
-- queue's tasks, if they were counted, which most above 0 asks for.
CREATE OR REPLACE FUNCTION lk.put_task_1(of_queue text, of_key bytea, of_put text, of_payload bytea, after bigint,
  keep boolean, repeated boolean, most bigint, at_commit boolean, OUT outcome text, OUT remaining bigint, OUT size bigint,
  OUT pushes text[]) LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  t record;
BEGIN
  remaining := 0;
  LOOP
    SELECT * INTO t FROM lk.lock_task_1(of_queue, of_key);
    IF t.put = of_put OR t.next_put = of_put THEN
      outcome := CASE WHEN t.put = of_put THEN t.outcome ELSE 'F' END;
      PERFORM lk.confirm_1();
      RETURN;
    ELSIF EXISTS (SELECT FROM lk.cancelled_tasks c
      WHERE c.queue = of_queue AND c.key = of_key AND c.put = of_put AND c.ends > t.at) THEN
      outcome := 'K';
      PERFORM lk.confirm_1();
      RETURN;
    ELSIF t.put IS NOT NULL AND keep THEN
      outcome := 'K';
      remaining := CASE WHEN t.runs THEN 0 ELSE greatest(t.due - t.at, 0) END;
      PERFORM lk.confirm_1();
      RETURN;
    ELSIF t.put IS NULL AND most > 0 THEN
      size := (SELECT count(*) FROM (SELECT FROM lk.tasks s WHERE s.queue = of_queue LIMIT most) n) +
        (SELECT count(*) FROM (SELECT FROM lk.buried_tasks b
          WHERE b.queue = of_queue AND b.expires > t.at LIMIT most) n);
      IF size >= most THEN
        outcome := 'full';
        RETURN;
      END IF;
    END IF;
    IF t.put IS NULL THEN
      INSERT INTO lk.tasks (queue, key, put, payload, due, outcome, tried)
        VALUES (of_queue, of_key, of_put, of_payload, t.at + after, 'C', repeated) ON CONFLICT (queue, key) DO NOTHING;
      CONTINUE WHEN NOT FOUND; -- another transaction was first
      outcome := 'C';
    ELSIF t.runs THEN
      UPDATE lk.tasks SET next_put = of_put, next_payload = of_payload, next_due = t.at + after, next_ran = repeated
        WHERE queue = of_queue AND key = of_key;
      outcome := 'F';
      RETURN;
    ELSE
      UPDATE lk.tasks SET put = of_put, payload = of_payload, due = t.at + after, outcome = 'M', attempt = 0,
        running = false, tried = t.running OR repeated, cancelled = false, owner = '', holder = ''
        WHERE queue = of_queue AND key = of_key;
      outcome := 'M';
    END IF;
    pushes := lk.announce_task_1(of_queue, t.at + after, at_commit);
    RETURN;
  END LOOP;
END $$;

-- cancel_task_1 is CancelTask. of_task is empty, or the ID of the only task to cancel.
CREATE OR REPLACE FUNCTION lk.cancel_task_1(of_queue text, of_key bytea, by text, remembered bigint,
  of_task text DEFAULT '')
  RETURNS text
  LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
  t record;
  at bigint;
  found_it boolean;
  runs boolean;
  result text;
  last_put text;
BEGIN
  SELECT s.put, s.next_put, s.due, s.running, s.tried INTO t FROM lk.tasks s
    WHERE s.queue = of_queue AND s.key = of_key FOR UPDATE;
  found_it := FOUND;
  at := lk.now_us();
  SELECT c.outcome INTO result FROM lk.cancelled_tasks c
    WHERE c.queue = of_queue AND c.key = of_key AND c.id = by AND c.ends > at;
  IF FOUND THEN
    PERFORM lk.confirm_1();
    RETURN result;
  END IF;
  result := 'A';
  DELETE FROM lk.buried_tasks b WHERE b.queue = of_queue AND b.key = of_key AND of_task IN ('', b.put);
  IF FOUND THEN
    result := 'E';
  END IF;
  runs := t.running AND t.due > at;
  IF found_it AND of_task IN ('', CASE WHEN t.running AND NOT runs THEN coalesce(t.next_put, t.put) ELSE t.put END) THEN
    last_put := CASE WHEN of_task = '' THEN coalesce(t.next_put, t.put) ELSE of_task END;
    IF runs AND of_task <> '' THEN
      result := 'R';
      UPDATE lk.tasks s SET cancelled = true WHERE s.queue = of_queue AND s.key = of_key;
    ELSIF runs THEN
      result := 'R';
      UPDATE lk.tasks s SET cancelled = true, next_put = NULL, next_payload = NULL, next_due = NULL
        WHERE s.queue = of_queue AND s.key = of_key;
    ELSE
      result := CASE WHEN t.tried THEN 'E' ELSE 'P' END;
      DELETE FROM lk.tasks s WHERE s.queue = of_queue AND s.key = of_key;
    END IF;
  END IF;
  IF result = 'A' AND of_task <> '' THEN
    PERFORM lk.confirm_1();
    RETURN result;
  END IF;
  INSERT INTO lk.cancelled_tasks AS c (queue, key, id, put, outcome, ends)
    VALUES (of_queue, of_key, by, last_put, result::"char", at + remembered)
    ON CONFLICT (queue, key) DO UPDATE SET id = excluded.id, put = coalesce(excluded.put, c.put),
      outcome = excluded.outcome, ends = excluded.ends; -- a cancel of nothing forgets nothing
  RETURN result;
END $$;

-- take_tasks_1 is TakeTasks, of tasks that have been due since a time. It returns a row for each
-- task, and a last one without a key. Its columns are:
--   - due: when the task was due;
--   - next: of the last row: the time until then, 0 if more are due than most, or null;
--   - idle: of the last row: how many other processes wait.
--
-- A row that another transaction has locked is left to it: it takes the task, most likely. The
-- caller looks again soon. The payloads of a take are bounded, so that a reply is there in time.
CREATE OR REPLACE FUNCTION lk.take_tasks_1(of_queue text, by text, most int, for_lease bigint, for_holder bytea,
  me text, from_due bigint)
RETURNS TABLE (key bytea, put text, payload bytea, attempt int, fence bigint, due bigint, late bigint, next bigint,
  idle bigint)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  most_bytes CONSTANT bigint := 16777216;
  locked_check CONSTANT bigint := 100000;
  at bigint;
  places tid[];
  ended boolean;
  more boolean;
  first bigint;
BEGIN
  LOOP
    at := lk.now_us();
    SELECT array_agg(h.place) FILTER (WHERE h.before < most_bytes), coalesce(bool_or(h.ended), false),
      count(*) = most OR coalesce(bool_or(h.before >= most_bytes), false) INTO places, ended, more
      FROM (SELECT l.*, sum(l.size) OVER (ORDER BY l.due, l.place) - l.size AS before
        FROM (SELECT t.ctid AS place, t.due, t.running AND (t.cancelled OR t.next_put IS NOT NULL) AS ended,
            octet_length(t.payload) AS size
          FROM lk.tasks t WHERE t.queue || '' = of_queue AND t.due >= from_due AND t.due <= at
          ORDER BY t.due LIMIT most FOR UPDATE SKIP LOCKED) l) h;
    EXIT WHEN NOT ended;
    PERFORM lk.end_tasks_1(places, at);
  END LOOP;
  IF places IS NOT NULL THEN
    RETURN QUERY UPDATE lk.tasks t SET running = true, tried = true, owner = by, holder = for_holder,
      attempt = least(t.attempt, 2147483646) + 1, fence = greatest(t.fence + 1, at), since = t.due, due = at + for_lease
      WHERE t.ctid = ANY (places)
      RETURNING t.key, t.put, t.payload, t.attempt, t.fence, t.since, at - t.since, NULL::bigint, NULL::bigint;
  END IF;
  first := (SELECT t.due FROM lk.tasks t WHERE t.queue || '' = of_queue AND t.due >= from_due ORDER BY t.due LIMIT 1);
  next := CASE WHEN first > at THEN greatest(first - lk.now_us(), 1) WHEN first <= at AND more THEN 0
    WHEN first <= at THEN locked_check END;
  idle := (SELECT count(*) FROM lk.task_waiters w WHERE w.queue = of_queue AND w.inbox <> me AND w.ends > at);
  RETURN NEXT;
END $$;

-- await_tasks_1 registers an inbox for tasks that are due earlier than the first one, for a time.
-- It returns:
--   - due: when the first task is due, or null;
--   - remaining: until then; 0 if a task is due that no other transaction has locked;
--   - fresh: the inbox was not registered before, so that a put in progress may not have seen it.
CREATE OR REPLACE FUNCTION lk.await_tasks_1(of_queue text, for_inbox text, life bigint, OUT due bigint,
  OUT remaining bigint, OUT fresh boolean) LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  locked_check CONSTANT bigint := 100000;
  at bigint;
BEGIN
  due := (SELECT t.due FROM lk.tasks t WHERE t.queue || '' = of_queue ORDER BY t.due LIMIT 1);
  at := lk.now_us();
  remaining := due - at;
  IF remaining <= 0 THEN
    PERFORM FROM lk.tasks t WHERE t.queue || '' = of_queue AND t.due <= at
      ORDER BY t.due LIMIT 1 FOR UPDATE SKIP LOCKED;
    remaining := CASE WHEN FOUND THEN 0 ELSE locked_check END;
  END IF;
  IF remaining = 0 THEN
    RETURN;
  END IF;
  fresh := NOT EXISTS (SELECT FROM lk.task_waiters w WHERE w.queue = of_queue AND w.inbox = for_inbox AND w.ends > at);
  INSERT INTO lk.task_waiters AS w (queue, inbox, due, ends)
    VALUES (of_queue, for_inbox, coalesce(await_tasks_1.due, 9223372036854775807), at + life)
    ON CONFLICT (queue, inbox) DO UPDATE SET due = excluded.due, ends = excluded.ends;
END $$;

-- renew_tasks_1 renews the leases of the attempts that own their tasks, whose rows no other
-- transaction has locked. It returns their numbers, from 1 on.
CREATE OR REPLACE FUNCTION lk.renew_tasks_1(queues text[], keys bytea[], puts text[], owners text[], leases bigint[],
  OUT renewed bigint[]) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
  at bigint := lk.now_us();
  places tid[];
BEGIN
  -- Locks are taken in one order, so that two processes do not wait for each other.
  SELECT array_agg(r.n), array_agg(l.place) INTO renewed, places
    FROM (SELECT * FROM unnest(queues, keys, puts, owners) WITH ORDINALITY AS u (queue, key, put, owner, n)
      ORDER BY u.queue, u.key) r
    CROSS JOIN LATERAL (SELECT t.ctid AS place FROM lk.tasks t
      WHERE t.queue = r.queue AND t.key = r.key AND t.put = r.put AND t.owner = r.owner AND t.running AND t.due - at > 0
      FOR UPDATE SKIP LOCKED) l;
  UPDATE lk.tasks t SET due = at + leases[renewed[array_position(places, t.ctid)]] WHERE t.ctid = ANY (places);
END $$;

-- settle_tasks_1 settles the attempts that own their tasks, whose rows no other transaction has
-- locked. It returns their numbers, from 1 on. hows are D done, A again, B buried.
CREATE OR REPLACE FUNCTION lk.settle_tasks_1(queues text[], keys bytea[], puts text[], owners text[], hows text[],
  afters bigint[], reasons bytea[], uncounted boolean[], at_commit boolean, OUT settled bigint[], OUT pushes text[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  at bigint := lk.now_us();
  places tid[];
  bury boolean;
  again boolean;
  follows boolean;
BEGIN
  SELECT array_agg(r.n), array_agg(l.place), bool_or(r.how = 'B'), bool_or(r.how = 'A'), bool_or(l.follows)
    INTO settled, places, bury, again, follows
    FROM (SELECT * FROM unnest(queues, keys, puts, owners, hows) WITH ORDINALITY AS u (queue, key, put, owner, how, n)
      ORDER BY u.queue, u.key) r
    CROSS JOIN LATERAL (SELECT t.ctid AS place, t.next_put IS NOT NULL AS follows FROM lk.tasks t
      WHERE t.queue = r.queue AND t.key = r.key AND t.put = r.put AND t.owner = r.owner AND t.running AND t.due - at > 0
      FOR UPDATE SKIP LOCKED) l;
  IF places IS NULL THEN
    settled := '{}';
    RETURN;
  END IF;
  IF bury THEN
    INSERT INTO lk.buried_tasks (queue, key, put, attempt, fence, buried, expires, reason, payload)
      SELECT t.queue, t.key, t.put, t.attempt, t.fence, at, at + afters[m.n], reasons[m.n], t.payload
      FROM lk.tasks t, LATERAL (SELECT settled[array_position(places, t.ctid)] AS n) m
      WHERE t.ctid = ANY (places) AND hows[m.n] = 'B'
      ON CONFLICT (queue, key) DO UPDATE SET put = excluded.put, attempt = excluded.attempt, fence = excluded.fence,
        buried = excluded.buried, expires = excluded.expires, reason = excluded.reason, payload = excluded.payload;
  END IF;
  IF follows THEN
    PERFORM lk.end_tasks_1(places, at);
  END IF;
  IF again THEN
    UPDATE lk.tasks t SET running = false, holder = '', due = at + afters[settled[array_position(places, t.ctid)]],
      attempt = t.attempt - CASE WHEN uncounted[settled[array_position(places, t.ctid)]] THEN 1 ELSE 0 END
      WHERE t.ctid = ANY (places) AND hows[settled[array_position(places, t.ctid)]] = 'A'
        AND t.running AND NOT t.cancelled;
  END IF;
  -- An update moves a row to another place.
  DELETE FROM lk.tasks t WHERE t.ctid = ANY (places) AND t.running;
  IF follows OR again THEN
    SELECT array_agg(p.push) INTO pushes FROM (
      SELECT unnest(lk.announce_task_1(t.queue, min(t.due), at_commit)) AS push
      FROM unnest(settled) AS m (n) CROSS JOIN LATERAL
        (SELECT s.queue, s.due FROM lk.tasks s WHERE s.queue = queues[m.n] AND s.key = keys[m.n] OFFSET 0) t
      GROUP BY t.queue) p;
  END IF;
END $$;

-- settle_task_1 settles one attempt, or finds that it does not own its task, or is a repeat.
CREATE OR REPLACE FUNCTION lk.settle_task_1(of_queue text, of_key bytea, of_put text, by text, how text, after bigint,
  why bytea, uncounted boolean, repeated boolean, at_commit boolean, OUT owned boolean, OUT pushes text[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  t record;
BEGIN
  SELECT * INTO t FROM lk.lock_task_1(of_queue, of_key);
  IF t.put = of_put AND t.owner = by AND t.runs THEN
    SELECT array_length(s.settled, 1) = 1, s.pushes INTO owned, pushes
      FROM lk.settle_tasks_1(ARRAY[of_queue], ARRAY[of_key], ARRAY[of_put], ARRAY[by], ARRAY[how], ARRAY[after],
        ARRAY[why], ARRAY[uncounted], at_commit) s;
    owned := coalesce(owned, false); -- the lease has ended in between
    RETURN;
  END IF;
  IF t.put = of_put THEN
    owned := how = 'A' AND NOT t.running AND t.owner = by;
  ELSIF how = 'B' THEN
    owned := EXISTS (SELECT FROM lk.buried_tasks b
      WHERE b.queue = of_queue AND b.key = of_key AND b.put = of_put AND b.expires > t.at);
  ELSE
    owned := repeated;
  END IF;
  PERFORM lk.confirm_1();
END $$;

-- revive_task_1 is ReviveTask.
CREATE OR REPLACE FUNCTION lk.revive_task_1(of_queue text, of_key bytea, of_put text, OUT revived boolean,
  OUT pushes text[]) LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  t record;
BEGIN
  LOOP
    SELECT * INTO t FROM lk.lock_task_1(of_queue, of_key);
    IF t.put IS NOT NULL THEN
      revived := t.put = of_put;
      PERFORM lk.confirm_1();
      RETURN;
    END IF;
    INSERT INTO lk.tasks (queue, key, put, payload, due, outcome, fence, tried)
      SELECT b.queue, b.key, b.put, b.payload, t.at, 'C', b.fence, true FROM lk.buried_tasks b
      WHERE b.queue = of_queue AND b.key = of_key AND b.put = of_put AND b.expires > t.at
      ON CONFLICT (queue, key) DO NOTHING;
    revived := FOUND;
    EXIT WHEN revived OR NOT EXISTS (SELECT FROM lk.buried_tasks b
      WHERE b.queue = of_queue AND b.key = of_key AND b.put = of_put AND b.expires > t.at);
  END LOOP;
  IF revived THEN
    DELETE FROM lk.buried_tasks b WHERE b.queue = of_queue AND b.key = of_key;
    pushes := lk.announce_task_1(of_queue, t.at, false);
  END IF;
END $$;
