-- Lease rows, for whoever looks at them or ends them for others, and who may call what. Begun in row.sql.

-- Ends another's hold. outcome: 'done', 'not-current' (live: the tokens of the live holds), 'still-closed'. It stands in
-- the server's log.
CREATE OR REPLACE FUNCTION lockkeeper.row_break(
    a_name text, a_token bigint, a_reason text, a_by text, a_now boolean, OUT outcome text, OUT live bigint[])
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    anchor lockkeeper.row_lease;
    hold lockkeeper.row_lease;
    now timestamptz;
BEGIN
    anchor := lockkeeper.row_anchor(a_name);
    now := clock_timestamp();
    SELECT l.* INTO hold FROM lockkeeper.row_lease l
        WHERE l.name = a_name AND l.token = a_token AND l.shut_until > now;
    IF NOT FOUND THEN
        outcome := 'not-current';
        SELECT coalesce(array_agg(l.token ORDER BY l.token), '{}') INTO live FROM lockkeeper.row_lease l
            WHERE l.name = a_name AND l.held_until > now AND NOT l.revoked;
        RETURN;
    END IF;
    IF hold.held_until <= now AND NOT a_now THEN
        outcome := 'still-closed';
        RETURN;
    END IF;
    outcome := 'done';
    IF hold.revoked AND NOT a_now THEN
        -- The first reason stays.
        RETURN;
    END IF;
    RAISE LOG 'lockkeeper: % broke the hold of "%" with token % (%)%: %', a_by, a_name, a_token, hold.label,
        CASE WHEN a_now THEN ' at once' ELSE '' END, a_reason;
    -- A longer one is none of ours, and no channel may be called so.
    IF hold.held_until > now AND octet_length(hold.wake) <= 40 THEN
        PERFORM pg_notify('lockkeeper_' || hold.wake, 'revoked ' || hold.id);
    END IF;
    IF a_now THEN
        UPDATE lockkeeper.row_lease l SET
            held_until = least(l.held_until, now), shut_until = now, ended = 'broken',
            revoked = true, reason = a_reason, by_whom = a_by
            WHERE l.name = a_name AND l.slot = hold.slot;
        UPDATE lockkeeper.row_lease l SET crowded = lockkeeper.row_crowded(a_name, now)
            WHERE l.name = a_name AND l.slot = 0;
        PERFORM lockkeeper.row_wake(a_name, now);
    ELSE
        UPDATE lockkeeper.row_lease l SET revoked = true, reason = a_reason, by_whom = a_by
            WHERE l.name = a_name AND l.slot = hold.slot;
    END IF;
END $$;

-- Who holds and who waits: of one name, or (a_below) at and below it, or (no name) of all; at most a_most waiters a lock.
-- A hold has its token, a waiter has none; total is how many wait.
CREATE OR REPLACE FUNCTION lockkeeper.row_look(a_name text, a_below boolean, a_most integer)
    RETURNS TABLE (name text, token bigint, permit boolean, slot integer, owner text, age_ms bigint, state text,
        reason text, by_whom text, left_ms bigint, meta bytea, permits integer, total bigint)
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH moment AS MATERIALIZED (
        SELECT clock_timestamp() AS now
    ), ranges (low, high) AS MATERIALIZED (
        -- No name has a control character, so that this is exactly one name.
        SELECT coalesce(a_name, ''), a_name || chr(1)
        UNION ALL
        SELECT a_name || '/', a_name || '0' WHERE a_below AND a_name IS NOT NULL
    ), holds AS (
        SELECT l.* FROM ranges r JOIN lockkeeper.row_lease l
            ON l.name >= r.low COLLATE "C" AND (r.high IS NULL OR l.name < r.high COLLATE "C"), moment m
            WHERE l.shut_until > m.now
    ), waiting AS (
        SELECT w.*, row_number() OVER (PARTITION BY w.name ORDER BY w.ticket) AS place,
                count(*) OVER (PARTITION BY w.name) AS total
            FROM ranges r JOIN lockkeeper.row_waiter w
            ON w.name >= r.low COLLATE "C" AND (r.high IS NULL OR w.name < r.high COLLATE "C"), moment m
            WHERE w.expires > m.now
    ), rows AS (
        SELECT h.name, h.token, h.permit, h.slot, h.label AS owner,
                floor(date_part('epoch', m.now - h.since) * 1000)::bigint AS age_ms,
                CASE WHEN h.held_until <= m.now THEN 'closed' WHEN h.revoked THEN 'revoked' ELSE 'held' END AS state,
                h.reason, h.by_whom,
                ceil(date_part('epoch', h.shut_until - m.now) * 1000)::bigint AS left_ms,
                h.meta, 0::bigint AS total, 0::bigint AS ticket
            FROM holds h, moment m
        UNION ALL
        SELECT w.name, NULL, w.permit, NULL, w.label, NULL, NULL, NULL, NULL, NULL, w.meta, w.total, w.ticket
            FROM waiting w WHERE w.place <= a_most
    )
    SELECT x.name, x.token, x.permit, x.slot, x.owner, x.age_ms, x.state, x.reason, x.by_whom, x.left_ms, x.meta,
            CASE WHEN bool_or(x.permit) OVER (PARTITION BY x.name) THEN a.permits END, x.total
        FROM rows x LEFT JOIN lockkeeper.row_lease a ON a.name = x.name AND a.slot = 0
        ORDER BY x.name, x.token NULLS LAST, x.ticket
$$;

-- What a token is worth: whether one as high was ever given, and the tokens of the live holds.
CREATE OR REPLACE FUNCTION lockkeeper.row_check_token(a_name text, a_token bigint, OUT issued boolean, OUT live bigint[])
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT a_token > 0 AND a_token <= coalesce(max(greatest(l.token, l.last_token)),
                lockkeeper.row_floor(clock_timestamp())),
            coalesce(array_agg(l.token ORDER BY l.token) FILTER (WHERE l.held_until > clock_timestamp()
                AND NOT l.revoked), '{}')
        FROM lockkeeper.row_lease l WHERE l.name = a_name
$$;

-- Removes what is of no use any more: looks at the next 20 * a_most locks, and handles at most a_most of them: waiters and
-- permits whose time is over, marks of finished requests, and locks that nobody used for a day. At most every ten seconds
-- for all clients together, but a_again: whoever has just found something looks further at once. How many rows it removed.
-- Never waits for anybody.
CREATE OR REPLACE FUNCTION lockkeeper.row_clean(a_most integer, a_again boolean) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    begins text COLLATE "C";
    ends text COLLATE "C";
    upto text COLLATE "C";
    seen integer := 0;
    anchor record;
    removed integer := 0;
BEGIN
    SELECT s.upto INTO begins FROM lockkeeper.row_sweep s WHERE a_again OR s.swept < now - interval '10 s' OR s.swept > now
        FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT l.name INTO ends FROM lockkeeper.row_lease l
        WHERE l.slot = 0 AND l.name > begins ORDER BY l.name OFFSET 20 * a_most LIMIT 1;
    FOR anchor IN
        SELECT l.name, l.crowded, l.shut_until <= now AND greatest(l.since, l.used) < now - interval '1 day' AS unused
            FROM lockkeeper.row_lease l
            WHERE l.slot = 0 AND l.name > begins AND (ends IS NULL OR l.name <= ends)
                AND (l.crowded OR l.shut_until <= now AND greatest(l.since, l.used) < now - interval '1 day')
            ORDER BY l.name LIMIT a_most FOR UPDATE SKIP LOCKED
    LOOP
        seen := seen + 1;
        upto := anchor.name;
        IF anchor.crowded THEN
            WITH waiters AS (
                DELETE FROM lockkeeper.row_waiter w WHERE w.name = anchor.name AND w.expires <= now RETURNING 1
            ), gone AS (
                DELETE FROM lockkeeper.row_gone g WHERE g.name = anchor.name AND g.expires <= now RETURNING 1
            )
            SELECT removed + (SELECT count(*) FROM waiters) + (SELECT count(*) FROM gone) INTO removed;
            anchor.crowded := lockkeeper.row_crowded(anchor.name, now);
            UPDATE lockkeeper.row_lease l SET crowded = false
                WHERE l.name = anchor.name AND l.slot = 0 AND NOT anchor.crowded;
        END IF;
        IF anchor.unused AND NOT anchor.crowded THEN
            DELETE FROM lockkeeper.row_lease l WHERE l.name = anchor.name AND l.slot = 0;
            removed := removed + 1;
        END IF;
    END LOOP;
    IF seen >= a_most THEN
        -- There may be more before the end of what was looked at.
        ends := upto;
    END IF;
    WITH permits AS (
        -- Whoever repeats the release of a permit is told how it ended, for an hour.
        DELETE FROM lockkeeper.row_lease l WHERE l.ctid = ANY (ARRAY(SELECT d.ctid FROM lockkeeper.row_lease d
            WHERE d.slot > 0 AND d.name > begins AND (ends IS NULL OR d.name <= ends)
                AND d.shut_until < now - interval '1 hour' LIMIT a_most FOR UPDATE SKIP LOCKED)) RETURNING 1
    ), waiters AS (
        -- The anchor of these was deleted by hand.
        DELETE FROM lockkeeper.row_waiter w WHERE w.ctid = ANY (ARRAY(SELECT d.ctid FROM lockkeeper.row_waiter d
            WHERE d.expires < now - interval '1 hour' LIMIT a_most FOR UPDATE SKIP LOCKED)) RETURNING 1
    ), gone AS (
        DELETE FROM lockkeeper.row_gone g WHERE g.ctid = ANY (ARRAY(SELECT d.ctid FROM lockkeeper.row_gone d
            WHERE d.expires < now - interval '1 hour' LIMIT a_most FOR UPDATE SKIP LOCKED)) RETURNING 1
    )
    SELECT removed + (SELECT count(*) FROM permits) + (SELECT count(*) FROM waiters) + (SELECT count(*) FROM gone)
        INTO removed;
    UPDATE lockkeeper.row_sweep s SET upto = coalesce(ends, ''), swept = now;
    RETURN removed;
END $$;

-- Whoever may use the schema may not therefore break locks: what a role needs is granted to it by name.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA lockkeeper FROM PUBLIC;
