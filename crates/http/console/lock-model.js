// @ts-check
// A lock as this page keeps it: less than the service sends, since up to 200,000 are kept.

/**
 * @typedef {object} Hold
 * @property {number} token
 * @property {number} session 0: none, the hold is closed
 * @property {string} label
 * @property {string} identity
 * @property {'exclusive' | 'shared' | 'permit'} mode
 * @property {boolean} subtree
 * @property {'held' | 'revoked' | 'closed'} state
 * @property {number | undefined} slot
 * @property {number} since when it was granted, in milliseconds since 1970 by this browser's clock; NaN: unknown
 * @property {number} grantedAt the same by the service's clock: for orders, since what was longer on its way moves `since`
 * @property {number} closedUntil of a closed hold, in milliseconds since 1970; else 0
 * @property {'' | 'cached' | 'recalled'} cached its client keeps it between its sections; others wait for it
 * @property {string} meta
 * @property {string} breakBy
 * @property {string} breakReason
 */

/**
 * @typedef {object} Lock
 * @property {string} name
 * @property {Hold[]} holds
 * @property {number} holdCount
 * @property {number[]} waiters the sessions of the first ones
 * @property {number} waiterCount
 * @property {number | undefined} permits
 * @property {boolean} permitsStored
 * @property {number} run the number of the watch's connection that has last told of it
 */

/** The purpose of a hold is shown by its first characters in lists; this many are kept. */
const META_KEPT = 160;

/**
 * A lock of the service, as it is kept.
 *
 * @param {any} json
 * @param {number} run
 * @returns {Lock}
 */
export function lockOf(json, run) {
  const now = Date.now();
  const holds = list(json.holds).map((hold) => holdOf(hold, now));
  return {
    name: String(json.name ?? ''),
    holds,
    holdCount: Math.max(number(json.hold_count), holds.length),
    waiters: list(json.waiters).map((waiter) => number(waiter.session)),
    waiterCount: number(json.waiter_count),
    permits: typeof json.permits === 'number' ? json.permits : undefined,
    permitsStored: json.permits_stored === true,
    run,
  };
}

/**
 * @param {any} json
 * @param {number} now
 * @returns {Hold}
 */
export function holdOf(json, now) {
  return {
    token: number(json.token),
    session: number(json.session),
    label: String(json.label ?? ''),
    identity: String(json.identity ?? ''),
    mode: json.mode === 'shared' || json.mode === 'permit' ? json.mode : 'exclusive',
    subtree: json.subtree === true,
    state: json.state === 'revoked' || json.state === 'closed' ? json.state : 'held',
    slot: typeof json.slot === 'number' ? json.slot : undefined,
    since: typeof json.held_for_ms === 'number' ? now - json.held_for_ms : NaN,
    grantedAt: Date.parse(json.since),
    closedUntil: typeof json.closed_for_ms === 'number' ? now + json.closed_for_ms : 0,
    cached: json.recalled === true ? 'recalled' : json.cached === true ? 'cached' : '',
    meta: String(json.meta ?? '').slice(0, META_KEPT),
    breakBy: String(json.break_by ?? ''),
    breakReason: String(json.break_reason ?? ''),
  };
}

/**
 * Whether it is in use; else it is free, and the service does not list it.
 *
 * @param {Lock} lock
 */
export function isUsed(lock) {
  return lock.holdCount > 0 || lock.waiterCount > 0;
}

/**
 * Who holds or waits, by the best that is known.
 *
 * @param {{ label: string, identity: string, session: number }} who
 */
export function whoOf(who) {
  if (who.label !== '') return who.label;
  if (who.identity !== '') return who.identity;
  return who.session > 0 ? `session ${who.session}` : 'holder gone';
}

/** @typedef {'held' | 'shared' | 'permits' | 'breaking' | 'closed' | 'waiting' | 'free'} StateKind */

/**
 * The state of a lock in a word. What needs an operator's eye wins.
 *
 * @param {Lock} lock
 * @returns {{ kind: StateKind, text: string }}
 */
export function stateOf(lock) {
  const { holds, holdCount } = lock;
  if (holdCount === 0) return lock.waiterCount > 0 ? { kind: 'waiting', text: 'waiting' } : { kind: 'free', text: 'free' };
  let [closed, isBreaking] = [0, false];
  for (const hold of holds) {
    if (hold.state === 'revoked') isBreaking = true;
    else if (hold.state === 'closed') closed += 1;
  }
  if (isBreaking) return { kind: 'breaking', text: 'being broken' };
  if (closed === holds.length && closed > 0) return { kind: 'closed', text: 'closed' };
  const mode = holds[0]?.mode;
  if (mode === 'permit') return { kind: 'permits', text: `${holdCount} of ${lock.permits ?? '?'} permits` };
  if (mode === 'shared') return { kind: 'shared', text: holdCount === 1 ? 'shared' : `shared by ${holdCount}` };
  return { kind: 'held', text: 'held' };
}

/** @param {unknown} value */
function number(value) {
  return typeof value === 'number' ? value : 0;
}

/**
 * @param {unknown} value
 * @returns {any[]}
 */
function list(value) {
  return Array.isArray(value) ? value : [];
}
