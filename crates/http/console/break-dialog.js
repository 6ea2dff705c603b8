// @ts-check
// The order to end a hold that is not one's own. It asks for the token to be typed: the next hold has another one.

import { asProblem, isAbort, post } from './api.js';
import { el, fill, foreign, nameText, setText } from './dom.js';
import { field, openDialog } from './dialog.js';
import { whoOf } from './lock-model.js';
import { problemBox } from './problem-box.js';

/**
 * @param {string} name
 * @param {import('./lock-model.js').Hold} hold
 * @param {AbortSignal} signal closes the dialog
 * @param {() => void} done called after an answer
 */
export function openBreak(name, hold, signal, done) {
  const isClosed = hold.state === 'closed';
  const answer = el('div', { 'aria-live': 'polite' });
  const reason = el('input', { type: 'text', required: true, autocomplete: 'off', maxlength: 256 });
  const by = el('input', { type: 'text', autocomplete: 'off', maxlength: 256 });
  const typed = el('input', { type: 'text', inputmode: 'numeric', autocomplete: 'off', spellcheck: 'false', class: 'num' });
  const order = el('button', { class: 'danger filled', disabled: true }, 'Break the hold');
  const wait = el('input', { type: 'radio', name: 'how', value: 'wait', checked: !isClosed, disabled: isClosed });
  const now = el('input', { type: 'radio', name: 'how', value: 'now', checked: isClosed });
  let isSending = false;

  const check = () => {
    const matches = typed.value.trim() === String(hold.token);
    order.disabled = isSending || !matches || reason.value.trim() === '';
    typed.setAttribute('aria-invalid', String(typed.value !== '' && !String(hold.token).startsWith(typed.value.trim())));
  };
  const label = () => setText(order, now.checked ? 'Break the hold now' : 'Break the hold');

  openDialog('Break a hold', signal, (close) => {
    const form = el('form', { method: 'dialog', oninput: check, onchange: label });
    const cancel = el('button', { type: 'button', onclick: close }, 'Cancel');
    const setSending = (/** @type {boolean} */ is) => {
      isSending = is;
      form.closest('dialog')?.classList.toggle('sending', is);
      check();
    };
    form.addEventListener('submit', async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (order.disabled) return;
      setSending(true);
      fill(answer, el('p', { class: 'dim' }, 'Sending the order…'));
      try {
        const body = { name, token: hold.token, reason: reason.value.trim(), now: now.checked, ...(by.value.trim() === '' ? {} : { by: by.value.trim() }) };
        const { result, live_tokens: live } = await post('v1/break', body, signal);
        const isOver = result !== 'still-closed';
        fill(answer, resultBox(String(result), Array.isArray(live) ? live : [], now.checked));
        form.classList.toggle('over', isOver);
        if (isOver) setText(cancel, 'Close');
        if (isOver) cancel.focus();
        done();
      } catch (error) {
        if (isAbort(error)) return;
        const problem = asProblem(error);
        const isRefused = problem.status >= 400 && problem.status < 500;
        // Breaks may be repeated: they name the token, and another hold has another token.
        const hint = isRefused ? '' : 'Whether the order has had its effect is unknown. It may be sent again: it concerns this token only.';
        fill(answer, problemBox(isRefused ? 'The hold was not broken' : 'There was no answer to the order', problem, { hint }));
        done();
      }
      setSending(false);
    });
    form.append(
      el('div', { class: 'inputs' },
        el('dl', { class: 'short' }, el('dt', {}, 'Lock'), el('dd', {}, nameText(name, 'wrap')), el('dt', {}, 'Holder'), el('dd', {}, foreign(whoOf(hold), 'wrap')), el('dt', {}, 'Token'), el('dd', { class: 'num token' }, String(hold.token))),
        el('fieldset', {}, el('legend', {}, 'How'), choice(wait, 'Ask the holder to stop', isClosed ? 'Not possible: the holder is gone, and the hold only keeps the lock closed.' : 'The holder is told, and has up to its ttl to stop and release. The lock stays taken until then.'), choice(now, 'Now', isClosed ? 'Opens the lock: the next request may get it at once. Whoever kept it closed had a reason; make sure that the resource is in order.' : 'The next request may get the lock at once, while this holder may still be working. Only fencing tokens protect the resource then.')),
        field('Reason', reason, 'The holder and the audit trail get it.'),
        field('Ordered by (optional)', by, 'Your name, for the holder. The audit trail has your identity anyway.'),
        field(`Type the token ${hold.token} to confirm`, typed),
      ),
      answer,
      el('div', { class: 'actions' }, order, cancel),
    );
    return [form];
  });
  label();
  reason.focus();
}

/**
 * @param {HTMLElement} input
 * @param {string} text
 * @param {string} meaning
 */
function choice(input, text, meaning) {
  return el('label', { class: 'choice' }, input, el('span', {}, el('strong', {}, text), el('span', { class: 'hint' }, meaning)));
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
