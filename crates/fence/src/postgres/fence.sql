-- Lockkeeper's fence in PostgreSQL, version 1. For PostgreSQL 11 or later.
--
-- Nothing applies this by itself. Apply it as the owner that you want the marks to have:
--     psql -1 -v ON_ERROR_STOP=1 -f fence.sql
-- It may be applied again: what is there stays, functions are replaced, marks and grants are kept.
--
-- What it is for. A lock can't stop a holder that sleeps past its lease. Its token can, a number that rises with each
-- grant: here the highest token seen is kept for each resource (its mark), and lower ones are refused in the same
-- transaction as the write that they would have done.
--
--     SELECT lockkeeper_fence.enter('stock', 'exclusive', NULL, 17);        -- committed before you read
--     BEGIN;
--     SELECT lockkeeper_fence.check_write('stock', 'exclusive', NULL, 17);  -- first, then the write
--     UPDATE stock SET pieces = 11 WHERE id = 3;
--     COMMIT;
--
-- What a role needs, and nothing else:
--     GRANT USAGE ON SCHEMA lockkeeper_fence TO app;
--     GRANT EXECUTE ON FUNCTION lockkeeper_fence.enter, lockkeeper_fence.check_write, lockkeeper_fence.check_once,
--         lockkeeper_fence.read_marks, lockkeeper_fence.version TO app;
--
-- Why SECURITY DEFINER and no grants on the table: who could update the table could lower a mark, by mistake or not,
-- and then a stale holder passes. Through the functions marks only rise. Their search_path is pinned, they build no
-- SQL from arguments (guard_table does, and runs as its caller), and their owner needs no rights but on this schema:
-- let a role own it that can do nothing else (ALTER SCHEMA … OWNER TO …, the table and the functions too).
--
-- Errors that say no have SQLSTATEs of their own:
--     LK001 stale         DETAIL offered=5 highest=7
--     LK002 repeated      check_once with a token that was here; DETAIL offered=7 highest=7
--     LK003 shared write  a hold in mode shared may only enter and read
--     LK004 not a section an argument that no lock has
--     LK005 no token      a guarded table was written without lockkeeper.token
-- A transaction that is refused can only be rolled back (or back to a savepoint): that is intended.
--
-- Isolation. In READ COMMITTED a check waits for open transactions of the same resource and then judges by what they
-- left. In REPEATABLE READ and SERIALIZABLE it fails with 40001 where they left anything: roll back and run the whole
-- transaction again, as always at these levels. That is why every check that passes writes its row, also where the mark
-- was there already: else a waiter would go on with a snapshot from before the write that it waited for.
-- Transactions that check several resources in different orders can deadlock (40P01): check them in one order.

SELECT pg_advisory_xact_lock(7801237401);  -- two programs that install at once

CREATE SCHEMA IF NOT EXISTS lockkeeper_fence;

-- One row for each resource (slot -1, the base), and one for each slot of a permit that was seen. A slot's marks are the
-- greater of its own and the base's. 0 is a mark that no token has reached.
CREATE TABLE IF NOT EXISTS lockkeeper_fence.marks (
    resource     text    NOT NULL,
    slot         integer NOT NULL CHECK (slot BETWEEN -1 AND 65535),
    any_token    bigint  NOT NULL CHECK (any_token >= writer_token),
    writer_token bigint  NOT NULL CHECK (writer_token BETWEEN 0 AND 9007199254740991),
    PRIMARY KEY (resource, slot)
) WITH (fillfactor = 50);  -- room for the next version of a row beside it: no index is touched when a mark rises

CREATE OR REPLACE FUNCTION lockkeeper_fence.version() RETURNS integer
LANGUAGE sql IMMUTABLE AS 'SELECT 1';

-- The rule, for all that follow. Locks are taken in one order, base before slot, and held until the transaction ends:
-- whoever holds the base for update is alone at the resource; permits share the base and hold their slot for update.
CREATE OR REPLACE FUNCTION lockkeeper_fence.pass(
    p_resource text, p_mode text, p_slot integer, p_token bigint, p_action text
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    reader  CONSTANT boolean := p_mode = 'shared';
    once    CONSTANT boolean := p_action = 'check_once';
    base    bigint;
    highest bigint;
    passed  boolean := false;
BEGIN
    IF p_resource IS NULL OR octet_length(p_resource) NOT BETWEEN 1 AND 512 OR p_resource ~ '[\x01-\x1F\x7F]' THEN
        RAISE EXCEPTION USING ERRCODE = 'LK004',
            MESSAGE = format('%L is not the name of a resource: give 1 to 512 bytes without control characters', p_resource);
    ELSIF p_token IS NULL OR p_token NOT BETWEEN 1 AND 9007199254740991 THEN
        RAISE EXCEPTION USING ERRCODE = 'LK004',
            MESSAGE = format('%s is not a token: tokens are 1 to 9007199254740991 (2^53 - 1)', coalesce(p_token::text, 'null'));
    ELSIF p_mode IS NULL OR p_mode NOT IN ('exclusive', 'shared', 'permit') THEN
        RAISE EXCEPTION USING ERRCODE = 'LK004',
            MESSAGE = format('%L is not a mode: give exclusive, shared or permit', p_mode);
    ELSIF p_slot IS NOT NULL AND (p_mode <> 'permit' OR p_slot NOT BETWEEN 0 AND 65535) THEN
        RAISE EXCEPTION USING ERRCODE = 'LK004',
            MESSAGE = format('slot %s with mode %s: only mode permit has slots, 0 to 65535', p_slot, p_mode);
    ELSIF reader AND p_action <> 'enter' THEN
        RAISE EXCEPTION USING ERRCODE = 'LK003',
            MESSAGE = format('mode shared may only enter and read, not %s', p_action),
            HINT = 'Acquire the lock exclusively to write.';
    END IF;

    -- A mark must outlive a power loss before anyone relies on it, whatever the session is set to.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;

    IF p_slot IS NOT NULL THEN
        PERFORM FROM lockkeeper_fence.marks m WHERE m.resource = p_resource AND m.slot = p_slot;
        IF FOUND THEN
            SELECT m.any_token INTO STRICT base
            FROM lockkeeper_fence.marks m WHERE m.resource = p_resource AND m.slot = -1 FOR SHARE;
        ELSE
            -- A slot never seen: the base is written too, so that whoever took its snapshot before this row was there
            -- can't overlook it (40001).
            INSERT INTO lockkeeper_fence.marks AS m VALUES (p_resource, -1, 0, 0)
            ON CONFLICT (resource, slot) DO UPDATE SET any_token = m.any_token
            RETURNING m.any_token INTO base;
        END IF;
        IF base < p_token OR (base = p_token AND NOT once) THEN
            INSERT INTO lockkeeper_fence.marks AS m VALUES (p_resource, p_slot, p_token, p_token)
            ON CONFLICT (resource, slot) DO UPDATE
            SET any_token = excluded.any_token, writer_token = excluded.writer_token
            WHERE m.any_token < excluded.any_token OR (m.any_token = excluded.any_token AND NOT once);
            passed := FOUND;
        END IF;
        IF passed THEN
            RETURN;
        END IF;
        SELECT greatest(base, max(m.any_token)) INTO highest
        FROM lockkeeper_fence.marks m WHERE m.resource = p_resource AND m.slot = p_slot;
    ELSE
        IF reader THEN
            INSERT INTO lockkeeper_fence.marks AS m VALUES (p_resource, -1, p_token, 0)
            ON CONFLICT (resource, slot) DO UPDATE
            SET any_token = greatest(m.any_token, excluded.any_token)
            WHERE m.writer_token <= excluded.any_token;
        ELSE
            INSERT INTO lockkeeper_fence.marks AS m VALUES (p_resource, -1, p_token, p_token)
            ON CONFLICT (resource, slot) DO UPDATE
            SET any_token = excluded.any_token, writer_token = excluded.writer_token
            WHERE m.any_token < excluded.any_token OR (m.any_token = excluded.any_token AND NOT once);
        END IF;
        passed := FOUND;
        -- Nobody is at a slot while we hold the base; the locks are for 40001 where one has risen since our snapshot.
        SELECT coalesce(max(CASE WHEN reader THEN s.writer_token ELSE s.any_token END), 0) INTO highest
        FROM (SELECT m.any_token, m.writer_token FROM lockkeeper_fence.marks m
              WHERE m.resource = p_resource AND m.slot >= 0 FOR SHARE) s;
        IF passed AND (highest < p_token OR (highest = p_token AND NOT once)) THEN
            RETURN;
        END IF;
        SELECT max(CASE WHEN reader THEN m.writer_token ELSE m.any_token END) INTO highest
        FROM lockkeeper_fence.marks m WHERE m.resource = p_resource;
    END IF;

    -- What was raised above goes with the statement.
    IF highest = p_token THEN
        RAISE EXCEPTION USING ERRCODE = 'LK002',
            MESSAGE = format('token %s has been at %L before, and check_once lets a token through once', p_token, p_resource),
            DETAIL = format('offered=%s highest=%s', p_token, highest),
            HINT = 'If this is a retry, the first try passed; after enter use check_write, not check_once.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'LK001',
        MESSAGE = format('token %s is stale: token %s has been at %L; nothing was done', p_token, highest, p_resource),
        DETAIL = format('offered=%s highest=%s', p_token, highest),
        HINT = 'Stop this section: its lock is lost. Acquire the lock again, enter with the new token, and read again.';
END $$;

-- Raises the marks. Commit it before the section reads what it will write: then no token below writes any more. In one
-- transaction with the reads and the writes it must be the first statement; that keeps other sections waiting instead.
CREATE OR REPLACE FUNCTION lockkeeper_fence.enter(resource text, mode text, slot integer, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM lockkeeper_fence.pass($1, $2, $3, $4, 'enter');
END $$;

-- The first statement of a transaction that writes.
CREATE OR REPLACE FUNCTION lockkeeper_fence.check_write(resource text, mode text, slot integer, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM lockkeeper_fence.pass($1, $2, $3, $4, 'write');
END $$;

-- The first statement of a transaction with one blind effect for each grant: stands for enter and check_write, and lets
-- each token through once.
CREATE OR REPLACE FUNCTION lockkeeper_fence.check_once(resource text, mode text, slot integer, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM lockkeeper_fence.pass($1, $2, $3, $4, 'check_once');
END $$;

-- The marks of a resource: its base (slot -1) and its slots; no row if it was never seen.
CREATE OR REPLACE FUNCTION lockkeeper_fence.read_marks(resource text)
RETURNS TABLE (slot integer, any_token bigint, writer_token bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT m.slot, m.any_token, m.writer_token FROM lockkeeper_fence.marks m WHERE m.resource = $1 ORDER BY m.slot
$$;

-- Sets all marks of a resource to `token`, higher or LOWER: for the move to a lock service whose tokens are lower. While
-- an old holder may still write, a lower mark lets it in: stop all writers first. Not for applications: grant it to
-- nobody but operators.
CREATE OR REPLACE FUNCTION lockkeeper_fence.reset_marks(resource text, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF $2 IS NULL OR $2 NOT BETWEEN 1 AND 9007199254740991 THEN
        RAISE EXCEPTION USING ERRCODE = 'LK004',
            MESSAGE = format('%s is not a token: tokens are 1 to 9007199254740991 (2^53 - 1)', coalesce($2::text, 'null'));
    END IF;
    INSERT INTO lockkeeper_fence.marks AS m VALUES ($1, -1, $2, $2)
    ON CONFLICT ON CONSTRAINT marks_pkey DO UPDATE
    SET any_token = excluded.any_token, writer_token = excluded.writer_token;
    -- Rows of slots stay, saying nothing: who looks for one before it locks the base must not find it gone.
    UPDATE lockkeeper_fence.marks m SET any_token = 0, writer_token = 0 WHERE m.resource = $1 AND m.slot >= 0;
END $$;

-- For tables whose writers can't be changed: every statement that writes a guarded table is checked as check_write
-- does, with what the session or the transaction says:
--     SET LOCAL lockkeeper.token = '17';          and if need be lockkeeper.mode, lockkeeper.slot
-- or, for a program that knows nothing of it, from outside, after an enter:
--     PGOPTIONS="-c lockkeeper.token=$LOCKKEEPER_TOKEN" ./nightly-job
-- A write without a token is refused (LK005).
CREATE OR REPLACE FUNCTION lockkeeper_fence.guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    said_token CONSTANT text := nullif(current_setting('lockkeeper.token', true), '');
    said_mode  CONSTANT text := coalesce(nullif(current_setting('lockkeeper.mode', true), ''), 'exclusive');
    said_slot  CONSTANT text := nullif(current_setting('lockkeeper.slot', true), '');
    p_token    bigint;
    p_slot     integer;
BEGIN
    IF said_token IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'LK005',
            MESSAGE = format('table %I.%I is guarded by the fence %L and is written with a token only; nothing was done',
                             TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]),
            HINT = 'Acquire the lock, enter with its token, and SET LOCAL lockkeeper.token = ''…'' in each transaction that writes.';
    ELSIF said_token !~ '^[0-9]{1,16}$' OR coalesce(said_slot, '0') !~ '^[0-9]{1,5}$' THEN
        RAISE EXCEPTION USING ERRCODE = 'LK004',
            MESSAGE = format('lockkeeper.token = %L, lockkeeper.slot = %L: both must be numbers', said_token, said_slot);
    END IF;
    p_token := said_token;
    p_slot := said_slot;
    -- A load of many statements passes once: our own transaction wrote the mark, so it holds the row, and nothing above
    -- it is there. Else each statement would leave one more version of the row for the next to walk over.
    PERFORM FROM lockkeeper_fence.marks m
    WHERE m.resource = TG_ARGV[0] AND m.slot = coalesce(p_slot, -1)
        AND m.any_token = p_token AND m.writer_token = p_token
        AND m.xmin::text::bigint = txid_current_if_assigned() % 4294967296
        AND said_mode = CASE WHEN p_slot IS NULL THEN 'exclusive' ELSE 'permit' END
        AND NOT EXISTS (SELECT FROM lockkeeper_fence.marks o
                        WHERE o.resource = TG_ARGV[0] AND (p_slot IS NULL OR o.slot IN (-1, p_slot))
                            AND o.any_token > p_token);
    IF NOT FOUND THEN
        PERFORM lockkeeper_fence.pass(TG_ARGV[0], said_mode, p_slot, p_token, 'write');
    END IF;
    RETURN NULL;
END $$;

-- Guards a table, by default as the resource `schema.table`. The owner of the table calls it; he needs EXECUTE on it and
-- on guard(). Statements that name a partition go past the triggers of its parent: guard partitions too. Whoever may
-- disable triggers or sets session_replication_role goes past all of them.
CREATE OR REPLACE FUNCTION lockkeeper_fence.guard_table(guarded regclass, resource text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format(
        'CREATE TRIGGER lockkeeper_fence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
        'FOR EACH STATEMENT EXECUTE FUNCTION lockkeeper_fence.guard(%L)', guarded, coalesce(resource, guarded::text));
END $$;

-- Ends it. The marks stay.
CREATE OR REPLACE FUNCTION lockkeeper_fence.unguard_table(guarded regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('DROP TRIGGER lockkeeper_fence_guard ON %s', guarded);
END $$;

REVOKE ALL ON ALL TABLES IN SCHEMA lockkeeper_fence FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA lockkeeper_fence FROM PUBLIC;
