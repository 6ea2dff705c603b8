/**
 * The fence of PostgreSQL, on a client of `pg` (or anything with its `query`).
 *
 * ```ts
 * await client.query('BEGIN')
 * await enter(client, 'orders/42', guard) // the transaction's first statement
 * // read, decide, write
 * await client.query('COMMIT')
 * ```
 *
 * `enter` in the transaction that reads; `write` first in each further one that writes. What they have let through is
 * committed with their marks, or not at all.
 */
import { Section } from "../index.cjs";

/** A client, on which a transaction is open. A `Pool` has none. */
export interface Queryable {
  query(sql: string, values: unknown[]): Promise<unknown>;
  totalCount?: never;
}

/** The schema of the fence: its table and functions, as plain SQL. Apply it once, as the schema's owner. */
export function schemaSql(): string;
/** The rights that an application's role needs, as SQL. */
export function grantsSql(role: string): string;
/** Checks the token, and marks the resource: older ones are refused from then on. Before anything is read. */
export function enter(client: Queryable, resource: string, section: Section): Promise<void>;
/** Checks the token in a transaction that writes, after an `enter` in an earlier one. */
export function write(client: Queryable, resource: string, section: Section): Promise<void>;
/** Lets a token through once. Rejects with `Stale` or `Repeated`. */
export function once(client: Queryable, resource: string, section: Section): Promise<void>;
