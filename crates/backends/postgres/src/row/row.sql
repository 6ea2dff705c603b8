-- Lease rows: what `postgres://...?lock=row` stands on. May be run again at any time, also while it is used.
--
-- What holds everywhere below:
-- * Time is the database's, read by clock_timestamp() after the lock's row is locked. No client's clock counts.
-- * The row (name, slot 0) is the anchor of a lock. Every call that changes anything locks the anchor first, and the
--   anchors of several locks in the order of their names; whoever cleans up skips what is locked. So no two calls wait
--   for each other in a circle, and calls for one name run one after the other.
-- * Each call is one statement and one short transaction under READ COMMITTED, and keeps nothing in its connection: it
--   works through transaction poolers.
-- * A hold is over when its time is over; nobody has to notice. A renewal never makes a row and never revives one.
CREATE SCHEMA IF NOT EXISTS lockkeeper;

-- A row for each lock in use, which is also its exclusive hold or its permit of slot 0; further rows for further permits.
-- A hold is held until held_until, then closed until shut_until, then free. A free row remembers how its hold ended, so
-- that a repeated release is told the same.
CREATE TABLE IF NOT EXISTS lockkeeper.row_lease (
    name       text COLLATE "C" NOT NULL,
    slot       integer NOT NULL,
    id         text COLLATE "C",          -- the request that holds, or held last
    permit     boolean NOT NULL DEFAULT false,
    token      bigint NOT NULL DEFAULT 0, -- of that hold
    since      timestamptz,
    held_until timestamptz NOT NULL DEFAULT '-infinity',
    shut_until timestamptz NOT NULL DEFAULT '-infinity',
    ended      text,                      -- 'released' or 'broken' once its client or an operator ended it
    revoked    boolean NOT NULL DEFAULT false,
    reason     text,
    by_whom    text,
    label      text NOT NULL DEFAULT '',
    meta       bytea NOT NULL DEFAULT '',
    wake       text,                      -- where its client listens, if it does
    -- Of the anchor only:
    last_token bigint NOT NULL DEFAULT 0, -- the highest that was given for another slot
    used       timestamptz NOT NULL DEFAULT '-infinity', -- when that was
    permits    integer,                   -- how many permits there are, while a permit is held or waited for
    crowded    boolean NOT NULL DEFAULT false, -- there may be waiters, further permits or finished requests beside it
    PRIMARY KEY (name, slot)
    -- No CHECK: it would be parsed anew by each call, which is a seventh of the whole. row_anchor and row_acquire limit
    -- the sizes.
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Who waits, in the order of arrival.
CREATE TABLE IF NOT EXISTS lockkeeper.row_waiter (
    name    text COLLATE "C" NOT NULL,
    ticket  bigint NOT NULL,
    id      text COLLATE "C" NOT NULL UNIQUE,
    permit  boolean NOT NULL,
    expires timestamptz NOT NULL,
    label   text NOT NULL,
    meta    bytea NOT NULL,
    wake    text,
    PRIMARY KEY (name, ticket),
    -- What one client says must not get in the way of another's call.
    CHECK (octet_length(name) <= 512 AND octet_length(id) <= 100 AND octet_length(wake) <= 40),
    CHECK (octet_length(label) <= 256 AND octet_length(meta) <= 1024)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- Requests that were finished while an attempt of theirs may still be on its way: it must not hold when it arrives.
CREATE TABLE IF NOT EXISTS lockkeeper.row_gone (
    name    text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    expires timestamptz NOT NULL,
    PRIMARY KEY (name, id),
    CHECK (octet_length(name) <= 512 AND octet_length(id) <= 100)
);

-- Where the last sweep stopped, and when it was.
CREATE TABLE IF NOT EXISTS lockkeeper.row_sweep (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    upto  text COLLATE "C" NOT NULL DEFAULT '',
    swept timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO lockkeeper.row_sweep DEFAULT VALUES ON CONFLICT DO NOTHING;

-- The version of these tables and functions. A later one keeps what an earlier program calls.
CREATE OR REPLACE FUNCTION lockkeeper.row_version() RETURNS integer
    LANGUAGE sql IMMUTABLE AS 'SELECT 1';

-- What a token is at least (P2): microseconds since 2026-01-01 UTC. So tokens rise also after a lock's row was deleted,
-- or the database restored, as long as its clock is not set back.
CREATE OR REPLACE FUNCTION lockkeeper.row_floor(a_now timestamptz) RETURNS bigint
    LANGUAGE sql STABLE AS 'SELECT (pg_catalog.date_part(''epoch'', a_now) * 1000000)::bigint - 1767225600000000';

-- Locks the anchor of a name, and makes it if there is none.
CREATE OR REPLACE FUNCTION lockkeeper.row_anchor(a_name text, OUT anchor lockkeeper.row_lease)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Each statement below must see what was committed while it waited for the anchor.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'lockkeeper: the transaction is %, lease rows need read committed',
            current_setting('transaction_isolation')
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'ALTER ROLE ... SET default_transaction_isolation = ''read committed''';
    END IF;
    IF octet_length(a_name) > 512 THEN
        RAISE EXCEPTION 'lockkeeper: a name of % bytes: at most 512 are allowed', octet_length(a_name)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOOP
        SELECT l.* INTO anchor FROM lockkeeper.row_lease l WHERE l.name = a_name AND l.slot = 0 FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO lockkeeper.row_lease (name, slot) VALUES (a_name, 0) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- Whether there is anything beside the anchor, which must be locked.
CREATE OR REPLACE FUNCTION lockkeeper.row_crowded(a_name text, a_now timestamptz) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM lockkeeper.row_waiter w WHERE w.name = a_name)
        OR EXISTS (SELECT FROM lockkeeper.row_lease l WHERE l.name = a_name AND l.slot > 0 AND l.shut_until > a_now)
        OR EXISTS (SELECT FROM lockkeeper.row_gone g WHERE g.name = a_name);
END $$;

-- Wakes the first live waiter of a name, if its client listens.
CREATE OR REPLACE FUNCTION lockkeeper.row_wake(a_name text, a_now timestamptz) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head record;
BEGIN
    SELECT w.wake, w.id INTO head FROM lockkeeper.row_waiter w
        WHERE w.name = a_name AND w.expires > a_now ORDER BY w.ticket LIMIT 1;
    IF head.wake IS NOT NULL THEN
        PERFORM pg_notify('lockkeeper_' || head.wake, 'try ' || head.id);
    END IF;
END $$;

-- What row_acquire does where the lock is not simply free and asked for alone.
CREATE OR REPLACE FUNCTION lockkeeper.row_acquire_by_rule(
    a_name text, a_id text, a_permit boolean, a_of integer, a_ttl_ms bigint, a_closes_ms bigint, a_wait boolean,
    a_label text, a_meta bytea, a_wake text,
    OUT outcome text, OUT token bigint, OUT slot integer, OUT permits integer,
    OUT holder text, OUT ahead bigint, OUT left_ms bigint)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    ttl CONSTANT interval := a_ttl_ms * interval '1 ms';
    closes CONSTANT interval := a_closes_ms * interval '1 ms';
    anchor lockkeeper.row_lease;
    hold lockkeeper.row_lease;
    now timestamptz;
    mine bigint;
    ahead_alone bigint;
    holds integer;
    holds_alone integer;
    blocked_until timestamptz;
BEGIN
    IF a_ttl_ms NOT BETWEEN 1 AND 3600000 OR a_closes_ms NOT BETWEEN 0 AND 86400000 OR a_of NOT BETWEEN 1 AND 65536 THEN
        RAISE EXCEPTION 'lockkeeper: ttl % ms, closed for % ms, % permits: at most 1 h, 24 h, 65536 are allowed',
            a_ttl_ms, a_closes_ms, a_of USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- What one client says must not get in the way of another's call.
    IF octet_length(a_id) > 100 OR octet_length(a_wake) > 40 OR octet_length(a_label) > 256 OR octet_length(a_meta) > 1024
    THEN
        RAISE EXCEPTION 'lockkeeper: id, wake, label, meta of %, %, %, % bytes: at most 100, 40, 256, 1024 are allowed',
            octet_length(a_id), octet_length(a_wake), octet_length(a_label), octet_length(a_meta)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    anchor := lockkeeper.row_anchor(a_name);
    now := clock_timestamp();
    SELECT l.* INTO hold FROM lockkeeper.row_lease l
        WHERE l.name = a_name AND l.id = a_id AND l.held_until > now;
    IF FOUND THEN
        -- A repeat is told what was granted first (P7).
        outcome := 'granted';
        token := hold.token;
        slot := hold.slot;
        permits := anchor.permits;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM lockkeeper.row_gone g WHERE g.name = a_name AND g.id = a_id AND g.expires > now) THEN
        outcome := 'over';
        RETURN;
    END IF;

    -- The dead in front, whoever they are: those behind them must not wait for them (P8).
    LOOP
        DELETE FROM lockkeeper.row_waiter w WHERE w.name = a_name AND w.id <> a_id AND w.expires <= now AND w.ticket =
            (SELECT min(f.ticket) FROM lockkeeper.row_waiter f WHERE f.name = a_name);
        EXIT WHEN NOT FOUND;
    END LOOP;
    SELECT w.ticket INTO mine FROM lockkeeper.row_waiter w WHERE w.name = a_name AND w.id = a_id;
    SELECT count(*), count(*) FILTER (WHERE NOT w.permit) INTO ahead, ahead_alone FROM lockkeeper.row_waiter w
        WHERE w.name = a_name AND w.ticket < coalesce(mine, 9223372036854775807) AND w.expires > now;
    SELECT count(*), count(*) FILTER (WHERE NOT l.permit),
            CASE WHEN a_permit THEN min(l.shut_until) ELSE max(l.shut_until) END
        INTO holds, holds_alone, blocked_until
        FROM lockkeeper.row_lease l WHERE l.name = a_name AND l.shut_until > now;

    IF a_permit THEN
        -- The number of permits is in force while a permit is held, closed or waited for.
        IF holds = holds_alone AND NOT EXISTS (SELECT FROM lockkeeper.row_waiter w
                WHERE w.name = a_name AND w.permit AND w.expires > now) THEN
            anchor.permits := NULL;
        END IF;
        permits := coalesce(anchor.permits, a_of);
        IF permits IS NULL OR permits <> a_of THEN
            outcome := CASE WHEN permits IS NULL THEN 'no-limit' ELSE 'mismatch' END;
            RETURN;
        END IF;
    END IF;

    IF a_permit AND holds_alone = 0 AND ahead_alone = 0 AND holds + ahead < permits
        OR NOT a_permit AND holds = 0 AND ahead = 0 THEN
        outcome := 'granted';
        token := greatest(anchor.token + 1, anchor.last_token + 1, lockkeeper.row_floor(now));
        slot := 0;
        IF holds > 0 THEN
            SELECT min(s) INTO slot FROM generate_series(0, holds) s WHERE NOT EXISTS
                (SELECT FROM lockkeeper.row_lease l WHERE l.name = a_name AND l.slot = s AND l.shut_until > now);
        END IF;
        IF mine IS NOT NULL THEN
            DELETE FROM lockkeeper.row_waiter w WHERE w.name = a_name AND w.ticket = mine;
        END IF;
        INSERT INTO lockkeeper.row_lease AS l
            (name, slot, id, permit, token, since, held_until, shut_until, label, meta, wake)
            VALUES (a_name, row_acquire_by_rule.slot, a_id, a_permit, row_acquire_by_rule.token, now, now + ttl, now + ttl + closes,
                a_label, a_meta, a_wake)
            ON CONFLICT (name, slot) DO UPDATE SET
                id = a_id, permit = a_permit, token = row_acquire_by_rule.token, since = now,
                held_until = now + ttl, shut_until = now + ttl + closes,
                ended = NULL, revoked = false, reason = NULL, by_whom = NULL,
                label = a_label, meta = a_meta, wake = a_wake;
        UPDATE lockkeeper.row_lease l SET
            last_token = row_acquire_by_rule.token, used = now, permits = row_acquire_by_rule.permits,
            crowded = lockkeeper.row_crowded(a_name, now)
            WHERE l.name = a_name AND l.slot = 0;
        IF holds + 1 < permits THEN
            PERFORM lockkeeper.row_wake(a_name, now);
        END IF;
        RETURN;
    END IF;

    SELECT l.label INTO holder FROM lockkeeper.row_lease l
        WHERE l.name = a_name AND l.held_until > now ORDER BY l.token LIMIT 1;
    IF blocked_until IS NULL THEN
        -- Free, but others come first: if they are dead, that shows by then.
        SELECT min(w.expires) INTO blocked_until FROM lockkeeper.row_waiter w
            WHERE w.name = a_name AND w.ticket < coalesce(mine, 9223372036854775807) AND w.expires > now;
    END IF;
    left_ms := ceil(date_part('epoch', blocked_until - now) * 1000);
    IF NOT a_wait THEN
        outcome := 'busy';
        RETURN;
    END IF;
    IF mine IS NULL AND ahead >= 131072 THEN
        outcome := 'full';
        RETURN;
    END IF;
    outcome := 'waits';
    IF mine IS NULL THEN
        -- A request waits once, wherever it waited before.
        INSERT INTO lockkeeper.row_waiter (name, ticket, id, permit, expires, label, meta, wake)
            SELECT a_name, coalesce(max(w.ticket), 0) + 1, a_id, a_permit, now + ttl, a_label, a_meta, a_wake
            FROM lockkeeper.row_waiter w WHERE w.name = a_name;
    ELSE
        UPDATE lockkeeper.row_waiter w SET expires = now + ttl, wake = a_wake WHERE w.name = a_name AND w.ticket = mine;
    END IF;
    IF NOT anchor.crowded OR a_permit AND anchor.permits IS NULL THEN
        UPDATE lockkeeper.row_lease l SET crowded = true, permits = coalesce(anchor.permits, row_acquire_by_rule.permits)
            WHERE l.name = a_name AND l.slot = 0;
    END IF;
END $$;

-- One try to hold. outcome: 'granted' (token; slot and permits for a permit), 'busy' or 'waits' (holder, ahead, and how
-- many ms what is in the way may last at most), 'over' (it was finished before), 'mismatch' (permits: how many there
-- are), 'no-limit', 'full'.
--
-- The usual case is one statement, whose condition holds for the row as it is when it is locked. Only its times may have
-- been read before that, if somebody had it locked and left it as it was: then they are set once more. Few expressions:
-- each of them is prepared anew in each transaction.
CREATE OR REPLACE FUNCTION lockkeeper.row_acquire(
    a_name text, a_id text, a_permit boolean, a_of integer, a_ttl_ms bigint, a_closes_ms bigint, a_wait boolean,
    a_label text, a_meta bytea, a_wake text,
    OUT outcome text, OUT token bigint, OUT slot integer, OUT permits integer,
    OUT holder text, OUT ahead bigint, OUT left_ms bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    granted_at timestamptz;
BEGIN
    UPDATE lockkeeper.row_lease l SET
        id = a_id, permit = false,
        token = greatest(l.token + 1, l.last_token + 1, lockkeeper.row_floor(clock_timestamp())),
        since = clock_timestamp(),
        held_until = clock_timestamp() + a_ttl_ms * interval '1 ms',
        shut_until = clock_timestamp() + (a_ttl_ms + a_closes_ms) * interval '1 ms',
        ended = NULL, revoked = false, reason = NULL, by_whom = NULL,
        label = a_label, meta = a_meta, wake = a_wake, permits = NULL
        WHERE l.name = a_name AND l.slot = 0 AND l.shut_until <= clock_timestamp() AND NOT l.crowded AND NOT a_permit
            AND a_ttl_ms BETWEEN 1 AND 3600000 AND a_closes_ms BETWEEN 0 AND 86400000
            AND octet_length(a_id) <= 100 AND octet_length(coalesce(a_wake, '')) <= 40
            AND octet_length(a_label) <= 256 AND octet_length(a_meta) <= 1024
        RETURNING 'granted', l.token, l.since INTO row_acquire.outcome, row_acquire.token, granted_at;
    IF granted_at > clock_timestamp() - interval '1 ms' THEN
        RETURN;
    ELSIF granted_at IS NOT NULL THEN
        UPDATE lockkeeper.row_lease l SET
            since = clock_timestamp(),
            held_until = clock_timestamp() + a_ttl_ms * interval '1 ms',
            shut_until = clock_timestamp() + (a_ttl_ms + a_closes_ms) * interval '1 ms'
            WHERE l.name = a_name AND l.slot = 0;
        RETURN;
    END IF;
    SELECT * INTO row_acquire.outcome, row_acquire.token, row_acquire.slot, row_acquire.permits, row_acquire.holder,
            row_acquire.ahead, row_acquire.left_ms
        FROM lockkeeper.row_acquire_by_rule(
            a_name, a_id, a_permit, a_of, a_ttl_ms, a_closes_ms, a_wait, a_label, a_meta, a_wake);
END $$;

-- Gives each request a full ttl from now on, if it still holds or waits. One letter a request, in their order: k kept,
-- g gone, r revoked by an operator, and therefore not renewed.
CREATE OR REPLACE FUNCTION lockkeeper.row_renew(a_names text[], a_ids text[], a_ttls_ms bigint[]) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now timestamptz;
    answer text;
BEGIN
    PERFORM FROM lockkeeper.row_lease l WHERE l.slot = 0 AND l.name = ANY (a_names) ORDER BY l.name FOR UPDATE;
    now := clock_timestamp();
    WITH asked AS MATERIALIZED (
        SELECT a.name, a.id, least(a.ttl_ms, 3600000) AS ttl_ms, a.at
            FROM unnest(a_names, a_ids, a_ttls_ms) WITH ORDINALITY a (name, id, ttl_ms, at)
    ), held AS (
        UPDATE lockkeeper.row_lease l SET
            held_until = now + a.ttl_ms * interval '1 ms',
            shut_until = now + a.ttl_ms * interval '1 ms' + (l.shut_until - l.held_until)
            FROM asked a WHERE l.name = a.name AND l.id = a.id AND l.held_until > now AND NOT l.revoked
            RETURNING a.at
    ), waiting AS (
        UPDATE lockkeeper.row_waiter w SET expires = now + a.ttl_ms * interval '1 ms'
            FROM asked a WHERE w.name = a.name AND w.id = a.id AND w.expires > now
            RETURNING a.at
    )
    SELECT string_agg(CASE
            WHEN a.at IN (SELECT h.at FROM held h) OR a.at IN (SELECT w.at FROM waiting w) THEN 'k'
            WHEN EXISTS (SELECT FROM lockkeeper.row_lease l
                WHERE l.name = a.name AND l.id = a.id AND l.revoked AND l.held_until > now) THEN 'r'
            ELSE 'g' END, '' ORDER BY a.at)
        INTO answer FROM asked a;
    RETURN coalesce(answer, '');
END $$;

-- What row_finish does where there is more beside the hold.
CREATE OR REPLACE FUNCTION lockkeeper.row_finish_by_rule(
    a_name text, a_id text, a_keep_ms bigint, a_ttl_ms bigint, a_doubt boolean) RETURNS text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    anchor lockkeeper.row_lease;
    hold lockkeeper.row_lease;
    now timestamptz;
    answer text := 'gone';
BEGIN
    IF a_keep_ms NOT BETWEEN 0 AND 86400000 OR a_ttl_ms NOT BETWEEN 1 AND 3600000 THEN
        RAISE EXCEPTION 'lockkeeper: closed for % ms, ttl % ms: at most 24 h, 1 h are allowed', a_keep_ms, a_ttl_ms
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    anchor := lockkeeper.row_anchor(a_name);
    now := clock_timestamp();
    DELETE FROM lockkeeper.row_waiter w WHERE w.name = a_name AND w.id = a_id;
    IF FOUND THEN
        answer := 'left';
    END IF;
    SELECT l.* INTO hold FROM lockkeeper.row_lease l WHERE l.name = a_name AND l.id = a_id
        ORDER BY l.held_until DESC LIMIT 1;
    IF FOUND AND hold.held_until > now THEN
        answer := CASE WHEN hold.revoked THEN 'broken' ELSE 'released' END;
        UPDATE lockkeeper.row_lease l SET
            held_until = now, shut_until = now + a_keep_ms * interval '1 ms', ended = answer
            WHERE l.name = a_name AND l.slot = hold.slot;
    ELSIF FOUND AND hold.ended IS NOT NULL THEN
        -- A repeat is told how it ended (P7).
        answer := hold.ended;
    END IF;
    DELETE FROM lockkeeper.row_gone g WHERE g.name = a_name AND g.expires <= now;
    IF a_doubt THEN
        INSERT INTO lockkeeper.row_gone (name, id, expires)
            VALUES (a_name, a_id, now + greatest(2 * a_ttl_ms, 60000) * interval '1 ms')
            ON CONFLICT (name, id) DO UPDATE SET expires = EXCLUDED.expires;
    END IF;
    IF anchor.crowded OR a_doubt THEN
        UPDATE lockkeeper.row_lease l SET crowded = lockkeeper.row_crowded(a_name, now)
            WHERE l.name = a_name AND l.slot = 0;
        PERFORM lockkeeper.row_wake(a_name, now);
    END IF;
    RETURN answer;
END $$;

-- Ends a hold by its request, or leaves the queue, and wakes whoever is next: 'released', 'broken' (it was revoked),
-- 'left', or 'gone' (it neither held nor waited). a_doubt: an attempt of it may still be on its way.
CREATE OR REPLACE FUNCTION lockkeeper.row_finish(
    a_name text, a_id text, a_keep_ms bigint, a_ttl_ms bigint, a_doubt boolean) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE lockkeeper.row_lease l SET held_until = clock_timestamp(), shut_until = clock_timestamp(), ended = 'released'
        WHERE l.name = a_name AND l.slot = 0 AND l.id = a_id AND l.held_until > clock_timestamp()
            AND NOT l.crowded AND NOT l.revoked AND NOT a_doubt AND a_keep_ms = 0;
    IF FOUND THEN
        RETURN 'released';
    END IF;
    RETURN lockkeeper.row_finish_by_rule(a_name, a_id, a_keep_ms, a_ttl_ms, a_doubt);
END $$;
