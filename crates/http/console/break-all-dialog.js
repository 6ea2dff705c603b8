// @ts-check
// The order to break all holds below a name: those that the page knows and shows, one call for each.

import { asProblem, isAbort, post } from './api.js';
import { el, foreign, nameText } from './dom.js';
import { field } from './dialog.js';
import { count, counted } from './format.js';
import { whoOf } from './lock-model.js';
import { lockHref } from './names.js';
import { choice, openOrder } from './order-dialog.js';

/** Holds of one order at most. */
const HOLDS_MAX = 1_000;
/** After so many failures in a row the rest is not tried: what refuses these refuses those. */
const FAILURES_MAX = 10;
/** Holds that are named before the order, and failed ones after it. */
const NAMED_MAX = 5;
const FAILED_MAX = 20;
/** The progress is told after so many holds: a screen reader reads each aloud. */
const PROGRESS_EVERY = 25;

/** @typedef {import('./lock-tree.js').TreeNode} TreeNode */
/** @typedef {{ name: string, hold: import('./lock-model.js').Hold }} Target */
/** @typedef {{ broken: number, gone: number, failed: { target: Target, why: string }[], untried: number }} Outcome */

/**
 * @param {TreeNode} folder
 * @param {boolean} isFiltered whether the page shows some of the locks only
 * @param {AbortSignal} signal closes the dialog
 */
export function openBreakAll(folder, isFiltered, signal) {
  const { targets, holds, locks, isWhole } = targetsBelow(folder);
  const number = targets.length;
  // All of them wait for their first holder.
  if (number === 0) return;
  const by = el('input', { type: 'text', autocomplete: 'off', maxlength: 256 });
  const wait = el('input', { type: 'radio', name: 'how', value: 'wait', checked: true });
  const now = el('input', { type: 'radio', name: 'how', value: 'now' });
  const named = targets.slice(0, NAMED_MAX).map(({ name, hold }) => el('li', {}, nameText(name, 'wrap'), el('span', { class: 'dim' }, ', ', foreign(whoOf(hold), 'wrap'))));
  const which = [
    number < holds ? `Only the first ${count(number)} of ${count(holds)}; give the order again for the rest.` : '',
    isFiltered ? 'Only those that the search shows.' : '',
    isWhole ? '' : 'Of a lock with many holds, only the first ten: its page shows the others.',
  ].filter((text) => text !== '');
  openOrder(
    {
      heading: 'Break all holds below a name',
      verb: () => `Break ${counted(number, 'hold')}${now.checked ? ' now' : ''}`,
      number,
      numberName: 'number of holds',
      before: [
        el('dl', { class: 'short' }, el('dt', {}, 'Below'), el('dd', {}, nameText(`${folder.name}/`, 'wrap')), el('dt', {}, 'Holds'), el('dd', { class: 'num' }, `${count(number)}, on ${counted(locks, 'lock')}`)),
        el('ul', { class: 'named' }, named, number > NAMED_MAX ? el('li', { class: 'dim' }, `and ${count(number - NAMED_MAX)} more`) : null),
        ...which.map((text) => el('p', { class: 'warning' }, text)),
        el('fieldset', {}, el('legend', {}, 'How'), choice(wait, 'Ask the holders to stop', 'Each has up to its ttl to stop and release. Closed locks stay closed.'), choice(now, 'Now', 'The next requests may get the locks at once, while these holders may still be working. Only fencing tokens protect the resources then.')),
      ],
      reasonHelp: 'The holders and the audit trail get it.',
      after: [field('Ordered by (optional)', by, 'Your name, for the holders.')],
      isStoppable: true,
      send: (reason, stop, progress) => breakAll(targets, { reason, now: now.checked, ...(by.value.trim() === '' ? {} : { by: by.value.trim() }) }, stop, progress),
      show: (outcome) => ({ box: outcomeBox(outcome, now.checked), isOver: true }),
      refused: 'The holds were not broken',
      concerns: 'these tokens',
    },
    signal,
    () => {},
  );
}

/**
 * The holds below a folder that the page shows, as they are now: what comes later has other tokens.
 *
 * @param {TreeNode} folder
 */
function targetsBelow(folder) {
  /** @type {Target[]} */
  const targets = [];
  let [holds, locks, isWhole] = [0, 0, true];
  const visit = (/** @type {TreeNode} */ node) => {
    for (const child of node.children.values()) {
      const { lock } = child;
      if (lock !== null && child.own.used > 0 && lock.holds.length > 0) {
        locks += 1;
        holds += lock.holds.length;
        isWhole &&= lock.holds.length === lock.holdCount;
        for (const hold of lock.holds) if (targets.length < HOLDS_MAX) targets.push({ name: lock.name, hold });
      }
      if (child.children.size > 0) visit(child);
    }
  };
  visit(folder);
  return { targets, holds, locks, isWhole };
}

/**
 * @param {Target[]} targets
 * @param {object} how
 * @param {AbortSignal} stop
 * @param {(text: string) => void} progress
 * @returns {Promise<Outcome>}
 */
async function breakAll(targets, how, stop, progress) {
  /** @type {Outcome} */
  const outcome = { broken: 0, gone: 0, failed: [], untried: 0 };
  let failures = 0;
  for (const [index, target] of targets.entries()) {
    if (index % PROGRESS_EVERY === 0) progress(`${count(index)} of ${counted(targets.length, 'hold')}. To close this stops it.`);
    try {
      const { result } = await post('v1/break', { name: target.name, token: target.hold.token, ...how }, stop);
      failures = 0;
      if (result === 'done') outcome.broken += 1;
      else if (result === 'not-current') outcome.gone += 1;
      else outcome.failed.push({ target, why: result === 'still-closed' ? 'it keeps the lock closed: only “Now” opens it' : `the answer is “${result}”` });
    } catch (error) {
      if (isAbort(error)) throw error;
      const { status, detail } = asProblem(error);
      outcome.failed.push({ target, why: detail });
      failures += 1;
      if (status !== 401 && failures < FAILURES_MAX) continue;
      outcome.untried = targets.length - index - 1;
      break;
    }
  }
  return outcome;
}

/**
 * @param {Outcome} outcome
 * @param {boolean} isNow
 */
function outcomeBox({ broken, gone, failed, untried }, isNow) {
  const isGood = failed.length === 0;
  const effect = broken === 0 ? '' : isNow ? 'Their holders are told when they next call, and may be working until then.' : 'Their holders are told to stop. The locks are free when they have released them, at the latest after their ttls.';
  return el(
    'div',
    { class: `box ${isGood ? 'good' : 'warn'}` },
    el('strong', {}, isGood ? `Done: ${counted(broken, 'hold')} broken` : `${counted(broken, 'hold')} broken, ${count(failed.length)} not`),
    effect === '' ? null : el('p', {}, effect),
    gone === 0 ? null : el('p', {}, `${counted(gone, 'hold')} had ended before.`),
    isGood ? null : el('p', {}, 'Not broken:'),
    isGood ? null : el('ul', { class: 'named' }, failed.slice(0, FAILED_MAX).map(({ target, why }) => el('li', {}, el('a', { href: lockHref(target.name) }, nameText(target.name, 'wrap')), ': ', foreign(why, 'wrap')))),
    failed.length > FAILED_MAX ? el('p', {}, `and ${count(failed.length - FAILED_MAX)} more`) : null,
    untried === 0 ? null : el('p', {}, `${counted(untried, 'hold was', 'holds were')} not tried after that.`),
  );
}
