// @ts-check
// What the audit trails of the nodes say about a lock: also from before the page was opened.

import { asProblem, get, isAbort } from './api.js';
import { encoded } from './names.js';

/** Records of each node that are looked at: the newest at and below the name. */
const RECORDS_MAX = 200;
/** Nodes that are asked. */
const NODES_MAX = 9;

/** @typedef {{ at: number, node: number, record: any }} TrailEntry */

/**
 * The records about a name, oldest first; null if the caller may not read them.
 *
 * @param {string} name
 * @param {AbortSignal} signal
 * @returns {Promise<TrailEntry[] | null>}
 */
export async function readTrail(name, signal) {
  const { node: own = 0, leader = own, members = [] } = await get('v1/status', signal);
  const read = async (/** @type {number} */ node) => {
    const { records } = await get(`v1/audit?node=${node}&prefix=${encoded(name)}&page_size=${RECORDS_MAX}`, signal);
    const exact = records.filter((/** @type {any} */ record) => record.name === name);
    return exact.map((/** @type {any} */ record) => ({ at: Date.parse(record.time), node, record }));
  };
  /** @type {TrailEntry[]} */
  let found;
  try {
    // What is done to a lock is recorded by the node that leads. A refusal is a record too, so that the others are asked later.
    found = await read(leader);
  } catch (error) {
    if (isAbort(error)) throw error;
    const { status } = asProblem(error);
    if (status === 401 || status === 403 || status === 404) return null;
    throw error;
  }
  const others = members.map((/** @type {any} */ member) => member.node).filter((/** @type {number} */ node) => node !== leader);
  const answers = await Promise.allSettled(others.slice(0, NODES_MAX).map(read));
  for (const answer of answers) if (answer.status === 'fulfilled') found.push(...answer.value);
  return found.sort((a, b) => a.at - b.at);
}
