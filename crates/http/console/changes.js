// @ts-check
// What has happened between two states of a lock.

import { whoOf } from './lock-model.js';

/** @typedef {import('./lock-model.js').Lock} Lock */
/** @typedef {import('./lock-model.js').Hold} Hold */

/**
 * @typedef {object} Change
 * @property {'granted' | 'ended' | 'revoked' | 'closed' | 'queue' | 'other'} what
 * @property {number} token 0: it concerns no hold
 * @property {string} who text of a client; empty: none
 * @property {string} text
 * @property {string} reason text of an operator; empty: none
 */

/**
 * The changes, in the order in which they make sense.
 *
 * @param {Lock | null} old null: the lock was free
 * @param {Lock | null} lock null: it is free
 * @returns {Change[]}
 */
export function changesOf(old, lock) {
  /** @type {Change[]} */
  const changes = [];
  const before = old?.holds ?? [];
  const after = lock?.holds ?? [];
  // A list with the first ten holds only does not say which of the others have ended.
  const isWhole = before.length === (old?.holdCount ?? 0) && after.length === (lock?.holdCount ?? 0);
  if (isWhole) {
    for (const hold of before) {
      if (!after.some((other) => other.token === hold.token)) changes.push(ended(hold));
    }
    for (const hold of after) {
      const earlier = before.find((other) => other.token === hold.token);
      if (earlier === undefined) {
        changes.push(change('granted', hold, `granted, ${modeText(hold)}, to`));
        if (hold.state !== 'held') changes.push(inState(hold));
      } else {
        if (earlier.state !== hold.state) changes.push(inState(hold));
        if (earlier.mode !== hold.mode) changes.push(change('other', hold, `is ${hold.mode} now; held by`));
      }
    }
  } else if ((old?.holdCount ?? 0) !== (lock?.holdCount ?? 0)) {
    changes.push(plain('other', `holds: ${old?.holdCount ?? 0} before, ${lock?.holdCount ?? 0} now`));
  }
  const [waited, waits] = [old?.waiterCount ?? 0, lock?.waiterCount ?? 0];
  if (waited !== waits) changes.push(plain('queue', `queue ${waits > waited ? 'grew' : 'shrank'} from ${waited} to ${waits}`));
  if (old && lock && old.permits !== lock.permits) {
    changes.push(plain('other', `limit changed from ${old.permits ?? 'none'} to ${lock.permits ?? 'none'}`));
  }
  return changes;
}

/** @param {Hold} hold */
function ended(hold) {
  if (hold.state === 'closed') return change('ended', hold, 'no longer keeps the lock closed');
  return change('ended', hold, hold.state === 'revoked' ? 'ended after its break; held by' : 'ended; held by');
}

/** @param {Hold} hold */
function inState(hold) {
  if (hold.state === 'revoked') {
    const by = hold.breakBy === '' ? '' : ` by ${hold.breakBy}`;
    return { ...change('revoked', hold, `break ordered${by}; held by`), reason: hold.breakReason };
  }
  if (hold.state === 'closed') return { ...change('closed', hold, 'ended, and keeps the lock closed'), who: '' };
  return change('other', hold, 'is held by');
}

/**
 * How it is held, for a sentence.
 *
 * @param {{ mode: string, slot?: number, subtree: boolean }} hold
 */
export function modeText(hold) {
  const slot = hold.slot === undefined ? '' : `, slot ${hold.slot}`;
  return `${hold.mode}${slot}${hold.subtree ? ', subtree' : ''}`;
}

/**
 * @param {Change['what']} what
 * @param {Hold} hold
 * @param {string} text
 * @returns {Change}
 */
function change(what, hold, text) {
  return { what, token: hold.token, who: hold.state === 'closed' ? '' : whoOf(hold), text, reason: '' };
}

/**
 * @param {Change['what']} what
 * @param {string} text
 * @returns {Change}
 */
function plain(what, text) {
  return { what, token: 0, who: '', text, reason: '' };
}
