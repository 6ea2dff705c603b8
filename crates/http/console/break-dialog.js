// @ts-check
// The order to end a hold that is not one's own. It asks for the token to be typed: the next hold has another one.

import { post } from './api.js';
import { el, foreign, nameText } from './dom.js';
import { field } from './dialog.js';
import { whoOf } from './lock-model.js';
import { choice, openOrder } from './order-dialog.js';

/**
 * @param {string} name
 * @param {import('./lock-model.js').Hold} hold
 * @param {AbortSignal} signal closes the dialog
 * @param {() => void} done called after an answer
 */
export function openBreak(name, hold, signal, done) {
  const { token } = hold;
  const isClosed = hold.state === 'closed';
  const by = el('input', { type: 'text', autocomplete: 'off', maxlength: 256 });
  const wait = el('input', { type: 'radio', name: 'how', value: 'wait', checked: !isClosed, disabled: isClosed });
  const now = el('input', { type: 'radio', name: 'how', value: 'now', checked: isClosed });
  openOrder(
    {
      heading: 'Break a hold',
      verb: () => (now.checked ? 'Break the hold now' : 'Break the hold'),
      number: token,
      numberName: 'token',
      before: [
        el('dl', { class: 'short' }, el('dt', {}, 'Lock'), el('dd', {}, nameText(name, 'wrap')), el('dt', {}, 'Holder'), el('dd', {}, foreign(whoOf(hold), 'wrap')), el('dt', {}, 'Token'), el('dd', { class: 'num token' }, String(token))),
        el('fieldset', {}, el('legend', {}, 'How'), choice(wait, 'Ask the holder to stop', isClosed ? 'Not possible: the holder is gone, and the hold only keeps the lock closed.' : 'The holder is told, and has up to its ttl to stop and release. The lock stays taken until then.'), choice(now, 'Now', isClosed ? 'Opens the lock: the next request may get it at once. Whoever kept it closed had a reason; make sure that the resource is in order.' : 'The next request may get the lock at once, while this holder may still be working. Only fencing tokens protect the resource then.')),
      ],
      reasonHelp: 'The holder and the audit trail get it.',
      after: [field('Ordered by (optional)', by, 'Your name, for the holder. The audit trail has your identity anyway.')],
      send: (reason) => post('v1/break', { name, token, reason, now: now.checked, ...(by.value.trim() === '' ? {} : { by: by.value.trim() }) }, signal),
      show: ({ result, live_tokens: live }) => ({ box: resultBox(String(result), Array.isArray(live) ? live : [], now.checked), isOver: result !== 'still-closed' }),
      refused: 'The hold was not broken',
      concerns: 'this token',
    },
    signal,
    done,
  );
}

/**
 * @param {string} result
 * @param {number[]} live tokens of the live holds
 * @param {boolean} isNow
 */
function resultBox(result, live, isNow) {
  if (result === 'done') {
    const text = isNow ? 'The hold has ended. Its holder is told when it next calls, and may be working until then.' : 'The holder is told to stop, if the hold had not ended already. The lock is free when the holder has released it, at the latest after its ttl.';
    return el('div', { class: 'box good' }, el('strong', {}, 'Done'), el('p', {}, text));
  }
  if (result === 'still-closed') {
    return el('div', { class: 'box warn' }, el('strong', {}, 'Still closed'), el('p', {}, 'The hold has ended but keeps the lock closed. Choose “Now” to open it.'));
  }
  if (result === 'not-current') {
    const tokens = live.length === 0 ? 'The lock has no live hold now.' : `Live holds have the tokens ${live.join(', ')}.`;
    return el('div', { class: 'box warn' }, el('strong', {}, 'Not current'), el('p', {}, `No live hold has this token any more, and nothing was broken. ${tokens} Close this and look at the lock again.`));
  }
  return el('div', { class: 'box warn' }, el('strong', {}, `The answer is “${result}”`), el('p', {}, 'This page does not know it. Look at the lock again.'));
}
