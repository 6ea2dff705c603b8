-- Fencing tokens for advisory locks. May be run again at any time, also while it is used: it never sets tokens back.
CREATE SCHEMA IF NOT EXISTS lockkeeper;

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
