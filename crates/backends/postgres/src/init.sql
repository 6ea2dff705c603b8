-- Fencing tokens for advisory locks. May be run again at any time, also while it is used: it never sets tokens back.
CREATE SCHEMA IF NOT EXISTS lockkeeper;

-- What was there before is kept, with its triggers and defaults: it must not be a trap that somebody else has laid.
-- Superusers need none.
DO $$
DECLARE
    stranger text;
BEGIN
    SELECT format('%s belongs to the role %I', o.what, pg_get_userbyid(o.owner)) INTO stranger
    FROM (
        SELECT 0 AS place, 'the schema lockkeeper' AS what, nspowner AS owner FROM pg_catalog.pg_namespace
        WHERE nspname = 'lockkeeper'
        UNION ALL
        SELECT 1, format('lockkeeper.%I', relname), relowner FROM pg_catalog.pg_class
        WHERE relnamespace = 'lockkeeper'::regnamespace
        UNION ALL
        SELECT 1, format('the function %s', oid::regprocedure), proowner FROM pg_catalog.pg_proc
        WHERE pronamespace = 'lockkeeper'::regnamespace
    ) AS o JOIN pg_catalog.pg_roles r ON r.oid = o.owner
    WHERE r.rolname <> current_user AND NOT r.rolsuper
    ORDER BY o.place, o.what LIMIT 1;
    IF stranger IS NOT NULL THEN
        RAISE EXCEPTION '% and not to %, who runs this: run it as that role, or, if the role is not to be trusted, '
            'look at the schema, and drop it or change its owner', stranger, current_user;
    END IF;
END
$$;

-- Without a cache: connections with a cache each would hand out their values in any order, and a later hold could have
-- the lower token. Below 2^53, so that a token survives JSON and JavaScript.
CREATE SEQUENCE IF NOT EXISTS lockkeeper.token AS bigint MAXVALUE 9007199254740991 NO CYCLE CACHE 1;

-- A sequence without history begins at the microseconds since 2026: as long as it gives fewer than a million tokens a
-- second over its life, its successor in a restored or wiped database begins above it. One that is behind by more than a
-- second's worth is raised; what is drawn meanwhile can't reach so far.
DO $$
DECLARE
    floor bigint := (extract(epoch FROM clock_timestamp() - timestamptz '2026-01-01 00:00:00+00') * 1000000)::bigint;
BEGIN
    IF (SELECT last_value FROM lockkeeper.token) < floor - 1000000 THEN
        PERFORM setval('lockkeeper.token', floor);
    END IF;
END
$$;
