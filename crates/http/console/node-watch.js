// @ts-check
// What is known of the nodes, read again and again while a view is shown: the members as the leader knows them, and what
// each node says of itself.

import { asProblem, get, isAbort } from './api.js';
import { refresh } from './refresh.js';

const REFRESH_MS = 2_000;

/** @typedef {import('./api.js').Problem} Problem */

/**
 * @typedef {object} Nodes
 * @property {any} own the status of the node that serves this page; null: not read yet
 * @property {any} members as the leader knows them; null: not read yet, or not any more
 * @property {Map<number, { status?: any, problem?: string }>} others by id: the status, or why there is none
 * @property {boolean} isLeaderless no leader answers
 * @property {Problem | null} membersProblem
 * @property {Problem | null} statusProblem
 * @property {boolean} asksOthers a node of an older version does not pass the question on
 */

/**
 * @param {AbortSignal} signal ends it
 * @param {() => void} changed called after each answer
 */
export function watchNodes(signal, changed) {
  /** @type {Nodes} */
  const nodes = { own: null, members: null, others: new Map(), isLeaderless: false, membersProblem: null, statusProblem: null, asksOthers: true };
  /** Nodes that have not answered yet. */
  const asked = new Set();

  const againMembers = refresh(REFRESH_MS, signal, (inner) => get('v1/members', inner), (json) => {
    nodes.members = json;
    nodes.isLeaderless = false;
    nodes.membersProblem = null;
    changed();
  }, (problem) => {
    nodes.members = null;
    nodes.isLeaderless = problem.status !== 401 && problem.status !== 403 && problem.status !== 429;
    nodes.membersProblem = problem;
    changed();
  });
  const againStatus = refresh(REFRESH_MS, signal, readStatus, () => {
    nodes.statusProblem = null;
    changed();
  }, (problem) => {
    nodes.statusProblem = problem;
    changed();
  });
  return { nodes, againMembers, againStatus };

  /** @param {AbortSignal} inner */
  async function readStatus(inner) {
    const own = await get('v1/status', inner);
    nodes.own = own;
    const ids = own.members.map((/** @type {any} */ it) => it.node).filter((/** @type {number} */ id) => id !== own.node);
    const known = new Set(ids);
    for (const id of nodes.others.keys()) if (!known.has(id)) nodes.others.delete(id);
    if (!nodes.asksOthers) return;
    // Each is shown when it answers: one that hangs holds up no other.
    for (const id of ids) if (!asked.has(id)) void readOther(id, inner);
  }

  /**
   * @param {number} id
   * @param {AbortSignal} inner
   */
  async function readOther(id, inner) {
    asked.add(id);
    try {
      const status = await get(`v1/status?node=${id}`, inner);
      // An older node ignores the number, and answers for itself.
      if (status.node === nodes.own.node) {
        nodes.asksOthers = false;
        nodes.others.clear();
      } else {
        nodes.others.set(id, { status });
      }
    } catch (error) {
      if (!isAbort(error)) nodes.others.set(id, { problem: asProblem(error).detail });
    }
    asked.delete(id);
    if (!inner.aborted) changed();
  }
}
