-- Latches: sets of the participants that have counted them down.

CREATE TABLE IF NOT EXISTS lk.latches (
  id uuid PRIMARY KEY,
  arrived int NOT NULL,
  ends bigint NOT NULL,  -- µs of the server's clock
  era bigint NOT NULL    -- the time of its beginning: a new set replaces one that has ended
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
CREATE INDEX IF NOT EXISTS latches_ends ON lk.latches (ends);

CREATE TABLE IF NOT EXISTS lk.latch_participants (
  latch uuid,
  era bigint,
  participant uuid,
  PRIMARY KEY (latch, era, participant)
);

-- The processes that wait for a latch to have a number of participants.
CREATE TABLE IF NOT EXISTS lk.latch_waiters (
  latch uuid,
  inbox text,
  count int,
  ends bigint NOT NULL,
  PRIMARY KEY (latch, count, inbox)
);

-- count_down_latch_1 adds a participant to a latch. It returns the number of participants, or -1 if
-- the latch is full, and the inboxes of the processes that wait for this number, or for less.
CREATE OR REPLACE FUNCTION lk.count_down_latch_1(of_id uuid, by uuid, ttl bigint, most int, OUT arrived int,
  OUT waiting text[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  l lk.latches;
  at bigint;
BEGIN
  LOOP
    INSERT INTO lk.latches (id, arrived, ends, era) VALUES (of_id, 0, 0, 0) ON CONFLICT (id) DO NOTHING;
    SELECT * INTO l FROM lk.latches WHERE id = of_id FOR UPDATE;
    EXIT WHEN FOUND; -- else a sweep has removed it
  END LOOP;
  at := lk.now_us();
  IF l.ends <= at THEN
    l.arrived := 0;
    l.era := greatest(at, l.era + 1);
  END IF;
  arrived := l.arrived;
  IF EXISTS (SELECT FROM lk.latch_participants p WHERE p.latch = of_id AND p.era = l.era AND p.participant = by) THEN
    RETURN;
  ELSIF arrived >= most THEN
    arrived := -1;
    RETURN;
  END IF;
  arrived := arrived + 1;
  INSERT INTO lk.latch_participants (latch, era, participant) VALUES (of_id, l.era, by);
  UPDATE lk.latches SET arrived = count_down_latch_1.arrived, ends = at + ttl, era = l.era WHERE id = of_id;
  WITH told AS (DELETE FROM lk.latch_waiters w WHERE w.latch = of_id AND w.count <= count_down_latch_1.arrived
    RETURNING w.inbox, w.ends)
    SELECT array_agg(DISTINCT told.inbox) INTO waiting FROM told WHERE told.ends > at;
END $$;

-- await_latch_1 registers an inbox, for a time, if a latch is not open. It returns the number of
-- participants.
CREATE OR REPLACE FUNCTION lk.await_latch_1(of_id uuid, for_count int, for_inbox text, life bigint) RETURNS int
  LANGUAGE plpgsql AS $$
DECLARE
  l lk.latches;
  at bigint;
BEGIN
  LOOP
    INSERT INTO lk.latches (id, arrived, ends, era) VALUES (of_id, 0, 0, 0) ON CONFLICT (id) DO NOTHING;
    SELECT * INTO l FROM lk.latches WHERE id = of_id FOR UPDATE; -- a participant comes before this, or tells the inbox
    EXIT WHEN FOUND; -- else a sweep has removed it
  END LOOP;
  at := lk.now_us();
  IF l.ends > at AND l.arrived >= for_count THEN
    RETURN l.arrived;
  END IF;
  INSERT INTO lk.latch_waiters AS w (latch, inbox, count, ends) VALUES (of_id, for_inbox, for_count, at + life)
    ON CONFLICT (latch, count, inbox) DO UPDATE SET ends = excluded.ends;
  RETURN CASE WHEN l.ends > at THEN l.arrived ELSE 0 END;
END $$;
