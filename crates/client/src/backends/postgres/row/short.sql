-- The short way of the usual pair, for whoever keeps prepared statements: a statement on a view is rewritten to the update
-- of the row when it is prepared, and runs as one, at half of what a function costs. What it has no row for (there is more
-- beside the hold, somebody has the lock, there is no such row yet) is for row_acquire and row_finish to say, which
-- do the same in that order and know the rest.
--
-- Nothing can be read here; row_lease is touched with the rights of the owner of these views, for whoever may update. What
-- is said may be an expression that is different each time: so it is used once, and cut where row_acquire refuses. Who
-- says that it is free before its own ttl is over gives it away. No function of ours: whoever updates would have to be
-- allowed to call it. Operands have the types of an operator of PostgreSQL's own, so that no other one is taken.
CREATE OR REPLACE VIEW lockkeeper.row_take AS
    SELECT NULL::text AS name, NULL::text AS id, NULL::interval AS ttl, NULL::interval AS shut, NULL::text AS label,
        NULL::bytea AS meta, NULL::text AS wake, NULL::bigint AS token;
-- An exclusive hold of a lock that is free, used exclusively last, and has nobody beside it; shut: as ttl, until it is free
-- again. Its times may have been read before the row was locked, if somebody had it locked and left it as it was: never
-- before the client asked, which is from when it counts.
CREATE OR REPLACE RULE row_take AS ON UPDATE TO lockkeeper.row_take DO INSTEAD
    UPDATE lockkeeper.row_lease l SET
        id = left(NEW.id, 100),
        -- row_floor, less one for the one that is added.
        token = greatest(l.token, l.last_token,
            (date_part('epoch', clock_timestamp()) * 1000000::double precision)::bigint - 1767225600000001) + 1::bigint,
        since = clock_timestamp(),
        held_until = clock_timestamp() + least(NEW.ttl, interval '1 h'),
        shut_until = clock_timestamp() + least(NEW.shut, interval '25 h'),
        ended = NULL, label = left(NEW.label, 256), meta = substr(NEW.meta, 1, 1024), wake = left(NEW.wake, 40)
        WHERE l.name = NEW.name AND l.slot = 0 AND l.shut_until <= clock_timestamp() AND NOT l.crowded
            AND NOT l.permit AND NOT l.revoked
        RETURNING NULL::text, NULL::text, NULL::interval, NULL::interval, NULL::text, NULL::bytea, NULL::text, l.token;

CREATE OR REPLACE VIEW lockkeeper.row_give AS SELECT NULL::text AS name, NULL::text AS id;
-- The end of such a hold, if nobody waits and it was not revoked.
CREATE OR REPLACE RULE row_give AS ON UPDATE TO lockkeeper.row_give DO INSTEAD
    UPDATE lockkeeper.row_lease l SET held_until = clock_timestamp(), shut_until = clock_timestamp(), ended = 'released'
        WHERE l.name = NEW.name AND l.slot = 0 AND l.id = NEW.id AND l.held_until > clock_timestamp()
            AND NOT l.crowded AND NOT l.revoked
        RETURNING NULL::text, NULL::text;
