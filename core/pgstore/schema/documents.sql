-- Documents: small texts by space and name. Times are µs of the server's clock, spans are µs.

-- A document that was removed, or has expired, is kept for an hour, for its version: the next one of
-- the name is larger although the clock steps back.
CREATE TABLE IF NOT EXISTS lk.documents (
  space bytea,
  name bytea,
  version bigint NOT NULL,
  replaced bigint NOT NULL,  -- named by its put: a version, 0 for any, or -1 for none
  put bigint NOT NULL,       -- when it was put, or removed
  expires bigint NOT NULL,   -- 0 if it was removed
  data bytea NOT NULL,
  PRIMARY KEY (space, name)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_threshold = 1000);
CREATE INDEX IF NOT EXISTS documents_expires ON lk.documents (expires);

-- put_document_1 puts a document. The outcome is 1 if it was put, or is there since an earlier put
-- like this, 0 if the document has another version than the one that the put may replace (0: any,
-- -1: none), and -1 if the space is full. version is the document's; 0 if there is none.
CREATE OR REPLACE FUNCTION lk.put_document_1(of_space bytea, of_name bytea, of_data bytea, life bigint, may bigint,
  most int, OUT outcome int, OUT version bigint) LANGUAGE plpgsql AS $$
DECLARE
  d lk.documents;
  at bigint;
BEGIN
  LOOP
    IF NOT EXISTS (SELECT FROM lk.documents s WHERE s.space = of_space AND s.name = of_name AND s.expires > lk.now_us()) THEN
      IF may > 0 THEN
        outcome := 0;
        version := 0;
        RETURN;
      END IF;
      -- Puts of new documents wait for each other, since they count those of the space.
      PERFORM pg_advisory_xact_lock(hashtextextended('lk.documents ' || encode(of_space, 'hex'), 0));
      INSERT INTO lk.documents AS s (space, name, version, replaced, put, expires, data)
        VALUES (of_space, of_name, 0, 0, 0, 0, '') ON CONFLICT DO NOTHING;
    END IF;
    SELECT * INTO d FROM lk.documents s WHERE s.space = of_space AND s.name = of_name FOR UPDATE;
    EXIT WHEN FOUND; -- else a sweep has removed it
  END LOOP;
  at := lk.now_us();
  IF d.expires > at THEN
    version := d.version;
    IF may = d.version AND of_data = d.data THEN
      UPDATE lk.documents s SET expires = at + life WHERE s.space = of_space AND s.name = of_name;
      outcome := 1;
      RETURN;
    ELSIF may <> 0 AND may <> d.version THEN
      outcome := CASE WHEN may = d.replaced AND of_data = d.data THEN 1 ELSE 0 END;
      RETURN;
    END IF;
  ELSIF may > 0 THEN -- it has just expired
    outcome := 0;
    version := 0;
    RETURN;
  ELSIF (SELECT count(*) FROM (SELECT FROM lk.documents s WHERE s.space = of_space AND s.expires > at LIMIT most) others) >= most THEN
    DELETE FROM lk.documents s WHERE s.space = of_space AND s.name = of_name AND s.version = 0;
    outcome := -1;
    version := 0;
    RETURN;
  END IF;
  outcome := 1;
  version := greatest(d.version + 1, at);
  UPDATE lk.documents s SET version = put_document_1.version, replaced = may, put = at, expires = at + life, data = of_data
    WHERE s.space = of_space AND s.name = of_name;
END $$;

-- remove_document_1 removes a document with a version, or with any for 0. It reports whether the name
-- has no document now.
CREATE OR REPLACE FUNCTION lk.remove_document_1(of_space bytea, of_name bytea, may bigint) RETURNS boolean
  LANGUAGE plpgsql AS $$
DECLARE
  d record;
  at bigint;
BEGIN
  SELECT s.version, s.expires INTO d FROM lk.documents s WHERE s.space = of_space AND s.name = of_name FOR UPDATE;
  at := lk.now_us();
  IF NOT FOUND OR d.expires <= at THEN
    RETURN true;
  ELSIF may <> 0 AND may <> d.version THEN
    RETURN false;
  END IF;
  UPDATE lk.documents s SET put = at, expires = 0, data = '' WHERE s.space = of_space AND s.name = of_name;
  RETURN true;
END $$;
