"use strict";

// The fence of PostgreSQL, on a transaction of `pg`. The rule is the server's (functions of the schema
// lockkeeper_fence), the same for programs in any language.

const { bridge } = require("../bridge.cjs");
const { NotFenced, Repeated, Stale } = require("../errors.cjs");

const ADVICE = "apply `schemaSql()` of lockkeeper/fences/pg, and `grantsSql(role)` for the application’s role";

/** Refuses a client whose next statement is a transaction of its own, as far as that can be seen. */
function checkTransaction(client) {
  // A pool, or a client outside of a transaction. Older versions of `pg` have no `getTransactionStatus`.
  const isAlone = "totalCount" in client || ["I", null].includes(client.getTransactionStatus?.());
  if (!isAlone) return;
  throw new NotFenced(
    "no transaction is open on this client: the check would be committed before the write, which could then be stale; " +
      'use one client of the pool, and `await client.query("BEGIN")` first',
  );
}

async function pass(client, name, resource, { token, mode = "exclusive", slot = null }) {
  checkTransaction(client);
  const sql = `SELECT lockkeeper_fence.${name}($1::text, $2::text, $3::int, $4::bigint)`;
  try {
    await client.query(sql, [resource, mode, slot, token]);
  } catch (error) {
    throw refusal(error) ?? error;
  }
}

/** The refusal, if the fence's functions have raised one. */
function refusal(error) {
  const { code, message, detail } = error;
  const tokens = /^offered=(\d+) highest=(\d+)$/.exec(detail ?? "");
  const made = (Class, fields, text = message) => Object.assign(new Class(text, fields), { cause: error });
  if (code === "LK001" && tokens) return made(Stale, { token: Number(tokens[1]), newest: Number(tokens[2]) });
  if (code === "LK002" && tokens) return made(Repeated, { token: Number(tokens[1]) });
  if (["LK003", "LK004", "LK005"].includes(code)) return made(NotFenced, {});
  if (["3F000", "42883", "42501"].includes(code) && message.includes("lockkeeper_fence")) {
    return made(NotFenced, {}, `${message}; ${ADVICE}`);
  }
  return undefined;
}

module.exports = {
  schemaSql: () => bridge.postgresFenceSql(),
  grantsSql: (role) => bridge.postgresFenceGrants(role),
  enter: (client, resource, section) => pass(client, "enter", resource, section),
  write: (client, resource, section) => pass(client, "check_write", resource, section),
  once: (client, resource, section) => pass(client, "check_once", resource, section),
};
