-- Token buckets: see store.Buckets. A row is one bucket. A bucket without a row is full.
--
-- Each statement that charges buckets goes once over their ids in order, locks the rows that there
-- are, and adds the missing ones. So statements never wait for each other in a circle. The
-- statements are:
--   - An INSERT with ON CONFLICT makes ordinary charges of decisions about one bucket.
--   - charge_together_1 does so for decisions about several buckets.
--   - charge_newest_1 makes an ordinary charge to a bucket whose row has a known place.
--   - take_tokens_1 makes all other charges, and reports why they were not made.

CREATE UNLOGGED TABLE IF NOT EXISTS lk.buckets (
  id uuid PRIMARY KEY,
  debt bigint NOT NULL,      -- when it is gone, in ns since 1970; of a calendar the tokens that were used
  interval bigint NOT NULL,  -- at which the last charge was made, in ns
  ends bigint,               -- of a calendar: when the period ends, in µs since 1970
  held bigint, span bigint,  -- while it is held: when that ends, in µs since 1970, and for how many µs it was held
  -- For the INSERT alone: arguments of its ON CONFLICT, and in cost the debt of its RETURNING.
  cost bigint, capacity bigint
) WITH (
  fillfactor = 50, -- room for updates in the page; no index on columns that charges change
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

-- The debt of a bucket that was charged at another interval, in numbers that are exact up to 2^53:
-- store.Charge.Convert.
CREATE OR REPLACE FUNCTION lk.convert_debt_1(debt bigint, made_at bigint, counted_at bigint, capacity bigint)
  RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  converted float8 := ceil(
    ((debt / 1000)::float8 * 1000 + (debt % 1000)::float8) / made_at::float8 * counted_at::float8);
BEGIN
  IF converted >= capacity::float8 THEN
    RETURN capacity;
  END IF;
  RETURN converted::bigint;
END $$;

-- The end of the period that includes an instant: store.Period.EndAt. All times are in µs.
CREATE OR REPLACE FUNCTION lk.period_end_1(now bigint, begins bigint, ends bigint, next bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  two bigint := greatest(next - begins, 1);
  since bigint := now - CASE WHEN now < begins THEN begins WHEN now < ends THEN ends ELSE next END;
BEGIN
  RETURN now - ((since % two) + two) % two + two;
END $$;

-- Makes one ordinary charge if the bucket has a row, and returns the debt and the row's place: see
-- chargeNewest in bucketdecisions.go. The update begins when the row is locked, and so sees the
-- version that was locked.
CREATE OR REPLACE FUNCTION lk.charge_newest_1(
  bucket uuid, my_interval bigint, my_cost bigint, my_capacity bigint, my_place tid, OUT debt bigint, OUT place tid
) LANGUAGE plpgsql AS $$
DECLARE
  locked tid;
BEGIN
  FOR try IN 1 .. CASE WHEN my_place IS NULL THEN 0 ELSE 2 END LOOP -- as step_lease_1 does
    SELECT b.ctid FROM lk.buckets b WHERE b.ctid = (SELECT lk.newest_place_1('lk.buckets', my_place))
      AND b.id = bucket FOR NO KEY UPDATE INTO locked;
    EXIT WHEN FOUND;
  END LOOP;
  IF locked IS NULL THEN
    SELECT b.ctid FROM lk.buckets b WHERE b.id >= bucket AND b.id <= bucket
      ORDER BY b.id DESC LIMIT 1 FOR NO KEY UPDATE INTO locked;
  END IF;
  UPDATE lk.buckets b SET debt = greatest(b.debt, lk.now_us() * 1000) + my_cost, interval = my_interval,
      cost = greatest(b.debt - lk.now_us() * 1000, 0) + my_cost
    WHERE b.id = bucket AND b.ctid = locked AND b.ends IS NULL AND b.held IS NULL
      AND (b.interval = my_interval OR b.debt <= lk.now_us() * 1000)
      AND greatest(b.debt - lk.now_us() * 1000, 0) <= my_capacity - my_cost
    RETURNING b.cost, b.ctid INTO charge_newest_1.debt, place;
END $$;

-- Makes ordinary charges, each to another bucket, or none of them, and returns the debts: see
-- chargeBuckets in bucketdecisions.go. The ids are in order.
CREATE OR REPLACE FUNCTION lk.charge_together_1(
  ids uuid[], intervals bigint[], costs bigint[], capacities bigint[], OUT debts bigint[]
) LANGUAGE plpgsql AS $$
BEGIN
  WITH made AS (
    INSERT INTO lk.buckets AS b (id, debt, interval, cost, capacity)
      SELECT c.id, lk.now_us() * 1000 + c.cost, c.interval, c.cost, c.capacity
      FROM unnest(ids, intervals, costs, capacities) AS c (id, interval, cost, capacity) ORDER BY c.id
    ON CONFLICT (id) DO UPDATE SET debt = greatest(b.debt, lk.now_us() * 1000) + excluded.cost,
      interval = excluded.interval, cost = greatest(b.debt - lk.now_us() * 1000, 0) + excluded.cost
    WHERE b.ends IS NULL AND b.held IS NULL AND (b.interval = excluded.interval OR b.debt <= lk.now_us() * 1000)
      AND greatest(b.debt - lk.now_us() * 1000, 0) <= excluded.capacity - excluded.cost
    RETURNING b.id, b.cost
  ) SELECT array_agg(m.cost ORDER BY m.id) FROM made m INTO debts;
  IF cardinality(debts) IS DISTINCT FROM cardinality(ids) THEN
    RAISE EXCEPTION USING ERRCODE = 'LK001'; -- undoes them
  END IF;
EXCEPTION
  WHEN SQLSTATE 'LK001' THEN
    debts := NULL;
END $$;

-- Locks the rows of buckets, in the order of their ids, and adds the missing ones as full buckets.
CREATE OR REPLACE FUNCTION lk.lock_buckets_1(buckets uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO lk.buckets (id, debt, interval) SELECT DISTINCT x.id, 0, 0 FROM unnest(buckets) AS x (id) ORDER BY x.id
    ON CONFLICT (id) DO UPDATE SET debt = 0 WHERE false;
END $$;

-- Makes decisions one after the other, each about the next charges, as many as its size. A wish is
-- the largest number of times that the costs are charged; 0 makes it a settlement. A decision that
-- only reads, or is denied, locks and writes nothing.
--
-- A debt is in ns, as are a cost, a capacity, the most that a debt may become, and an interval.
-- begins, ends and nexts are the bounds of periods in µs, or NULL for charges of no calendar.
--
-- It returns for each decision:
--   - taken: the number of times that it was charged; for a settlement, whether all of it was
--     charged;
--   - held: the time in µs for which one of its buckets is held.
--
-- It returns for each charge the debt, and the time in µs until its period ends.
CREATE OR REPLACE FUNCTION lk.take_tokens_1(
  wishes bigint[], sizes int[],
  ids uuid[], costs bigint[], capacities bigint[], mosts bigint[], intervals bigint[], freshes boolean[],
  begins bigint[], ends bigint[], nexts bigint[],
  OUT taken bigint[], OUT held bigint[], OUT debts bigint[], OUT lefts bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
  b lk.buckets;
  found lk.buckets[];
  waiting uuid[] := '{}';  -- buckets that are to be locked for the second pass
  pending boolean[] := '{}'; -- decisions that are made in it
  now bigint;
  now_ns bigint;
  first int;
  last int;
  times bigint;
  fits boolean;
  writes boolean;
  hold bigint;
  longest bigint;
  owed bigint;
  restarts boolean; -- a hold that a step back of the clock has made longer begins again
BEGIN
  FOR pass IN 1 .. 2 LOOP
    IF pass = 2 THEN
      EXIT WHEN waiting = '{}';
      PERFORM lk.lock_buckets_1(waiting);
    END IF;
    first := 1;
    FOR d IN 1 .. cardinality(sizes) LOOP
      last := first + sizes[d] - 1;
      IF pass = 1 OR pending[d] THEN
        FOR i IN first .. last LOOP
          SELECT * INTO b FROM lk.buckets WHERE id = ids[i];
          found[i] := b;
        END LOOP;
        now := lk.now_us(); -- after the locks
        now_ns := now * 1000;
        times := wishes[d];
        fits := true;
        writes := false;
        longest := 0;
        FOR i IN first .. last LOOP
          b := found[i];
          restarts := b.held - b.span > now;
          hold := CASE WHEN restarts THEN b.span WHEN b.held > now THEN b.held - now ELSE 0 END;
          longest := greatest(longest, hold);
          owed := 0;
          IF nexts[i] IS NOT NULL THEN
            lefts[i] := lk.period_end_1(now, begins[i], ends[i], nexts[i]) - now;
            -- See store.Charge.Used.
            IF b.debt > 0 AND b.ends > now AND b.ends - now <= greatest(nexts[i] - begins[i], 1) THEN
              owed := least(b.debt, mosts[i]);
              lefts[i] := b.ends - now;
            END IF;
          ELSE
            lefts[i] := 0;
            IF b.ends IS NULL AND b.debt > now_ns THEN
              IF b.interval = intervals[i] THEN
                owed := b.debt - now_ns;
              ELSIF NOT freshes[i] THEN
                owed := lk.convert_debt_1(b.debt - now_ns, b.interval, intervals[i], capacities[i]);
              END IF;
            END IF;
          END IF;
          IF wishes[d] = 0 AND costs[i] <> 0 THEN
            owed := least(owed, mosts[i]); -- of a larger plan, or before the clock stepped back
          END IF;
          debts[i] := owed;
          writes := writes OR restarts;
          IF costs[i] <> 0 THEN
            IF wishes[d] = 0 THEN
              fits := fits AND costs[i] <= mosts[i] - owed;
              writes := true;
            ELSIF hold > 0 OR costs[i] > capacities[i] - owed THEN
              times := 0;
            ELSE
              times := least(times, (capacities[i] - owed) / costs[i]);
            END IF;
          END IF;
        END LOOP;
        taken[d] := CASE WHEN wishes[d] = 0 THEN fits::int ELSE times END;
        held[d] := longest;
        FOR i IN first .. last LOOP
          writes := writes OR times > 0 AND costs[i] <> 0;
        END LOOP;
        pending[d] := writes;
        IF pass = 1 AND writes THEN
          FOR i IN first .. last LOOP
            IF costs[i] <> 0 OR (found[i]).held IS NOT NULL THEN
              waiting := waiting || ids[i];
            END IF;
          END LOOP;
        ELSIF writes THEN
          FOR i IN first .. last LOOP
            b := found[i];
            restarts := b.held - b.span > now AND ids[i] = ANY (waiting);
            IF costs[i] <> 0 AND (times > 0 OR wishes[d] = 0) THEN
              owed := debts[i];
              IF wishes[d] <> 0 THEN
                owed := owed + costs[i] * times;
              ELSIF costs[i] > mosts[i] - owed THEN
                owed := mosts[i];
              ELSE
                owed := greatest(owed + costs[i], 0);
              END IF;
              debts[i] := owed;
              b.interval := intervals[i];
              IF nexts[i] IS NOT NULL THEN
                b.debt := owed;
                b.ends := now + lefts[i];
                IF owed = 0 THEN
                  lefts[i] := lk.period_end_1(now, begins[i], ends[i], nexts[i]) - now;
                END IF;
              ELSE
                b.debt := CASE WHEN owed > 0 THEN now_ns + owed ELSE 0 END;
                b.ends := NULL;
              END IF;
            ELSIF NOT coalesce(restarts, false) THEN
              CONTINUE;
            ELSIF b.ends <= now OR b.ends IS NULL AND b.debt <= now_ns THEN
              b.debt := 0;
            END IF;
            UPDATE lk.buckets SET debt = b.debt, interval = b.interval, ends = b.ends,
                held = CASE WHEN restarts THEN now + b.span WHEN b.held > now THEN b.held END,
                span = CASE WHEN b.held > now THEN b.span END
              WHERE id = ids[i];
          END LOOP;
        END IF;
      END IF;
      first := last + 1;
    END LOOP;
  END LOOP;
  IF nexts IS NULL THEN
    lefts := NULL;
  END IF;
END $$;

-- Holds buckets for so many µs. A bucket that is held for longer stays so. Debts are not changed.
CREATE OR REPLACE FUNCTION lk.hold_tokens_1(buckets uuid[], length bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
BEGIN
  PERFORM lk.lock_buckets_1(buckets);
  now := lk.now_us(); -- after the locks
  UPDATE lk.buckets b SET held = now + length, span = length,
      debt = CASE WHEN b.ends <= now OR b.ends IS NULL AND b.debt <= now * 1000 THEN 0 ELSE b.debt END
    WHERE b.id = ANY (buckets) AND (b.held IS NULL OR b.held <= now OR least(b.held - now, b.span) < length);
  UPDATE lk.buckets b SET held = now + b.span,
      debt = CASE WHEN b.ends <= now OR b.ends IS NULL AND b.debt <= now * 1000 THEN 0 ELSE b.debt END
    WHERE b.id = ANY (buckets) AND b.held - b.span > now; -- the clock has stepped back
END $$;
