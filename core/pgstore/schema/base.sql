-- Common definitions of all parts. The statements may be repeated.

CREATE SCHEMA IF NOT EXISTS lk;

-- The version of the tables and functions, and the version of the oldest release that works with
-- them.
CREATE TABLE IF NOT EXISTS lk.schema_version (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  version int NOT NULL,
  compatible int NOT NULL
);

-- The server's time in microseconds, which advances during a transaction.
CREATE OR REPLACE FUNCTION lk.now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The newest version of a row, given the place of an earlier version; NULL if there is none. Each
-- version has the place of the next one, and currtid2 follows these. It fails for a place past the
-- end of the table. PostgreSQL has the function for its ODBC driver, and does not document it.
-- Without it a server is only slower beside an old transaction.
CREATE OR REPLACE FUNCTION lk.newest_place_1(rows text, place tid) RETURNS tid LANGUAGE plpgsql AS $$
BEGIN
  RETURN currtid2(rows, place);
EXCEPTION WHEN OTHERS THEN
  RETURN NULL;
END $$;
