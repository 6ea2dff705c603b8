// @ts-check
// The order to end a session whose client is not this page. It asks for the session's number to be typed.

import { asProblem, isAbort, post } from './api.js';
import { el, fill, foreign, setText } from './dom.js';
import { field, openDialog } from './dialog.js';
import { count } from './format.js';
import { problemBox } from './problem-box.js';

/**
 * @param {import('./view-sessions.js').Session} found
 * @param {AbortSignal} signal closes the dialog
 * @param {() => void} done called after an answer
 */
export function openEndSession(found, signal, done) {
  const { session } = found;
  const answer = el('div', { 'aria-live': 'polite' });
  const reason = el('input', { type: 'text', required: true, autocomplete: 'off', maxlength: 256 });
  const now = el('input', { type: 'checkbox' });
  const typed = el('input', { type: 'text', inputmode: 'numeric', autocomplete: 'off', spellcheck: 'false', class: 'num' });
  const order = el('button', { class: 'danger filled', disabled: true }, 'End the session');
  let isSending = false;

  const check = () => {
    order.disabled = isSending || typed.value.trim() !== String(session) || reason.value.trim() === '';
    typed.setAttribute('aria-invalid', String(typed.value !== '' && !String(session).startsWith(typed.value.trim())));
  };

  openDialog('End a session', signal, (close) => {
    const form = el('form', { method: 'dialog', oninput: check });
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
        const { result } = await post('v1/end-session', { session, reason: reason.value.trim(), now: now.checked }, signal);
        const isOver = result === 'done' || result === 'gone';
        fill(answer, resultBox(String(result)));
        form.classList.toggle('over', isOver);
        if (isOver) {
          setText(cancel, 'Close');
          cancel.focus();
        }
      } catch (error) {
        if (isAbort(error)) return;
        const problem = asProblem(error);
        const isRefused = problem.status >= 400 && problem.status < 500;
        // May be repeated: numbers of sessions are never given again.
        const hint = isRefused ? '' : 'Whether the order has had its effect is unknown. It may be sent again: it concerns this session only.';
        fill(answer, problemBox(isRefused ? 'The session was not ended' : 'There was no answer to the order', problem, { hint }));
      }
      done();
      setSending(false);
    });
    form.append(
      el('div', { class: 'inputs' },
        el('dl', { class: 'short' }, el('dt', {}, 'Session'), el('dd', { class: 'num' }, String(session)), el('dt', {}, 'Label'), el('dd', {}, found.label === '' ? 'none' : foreign(found.label, 'wrap')), el('dt', {}, 'Requests'), el('dd', { class: 'num' }, count(found.requests))),
        el('p', {}, 'All its locks are released at once, and all its waiting requests leave their queues, as if its ttl were over. Whoever works under these locks is not stopped: only fencing tokens protect what they write.'),
        el('label', { class: 'choice' }, now, el('span', {}, el('strong', {}, 'Even if its client is attached'), el('span', { class: 'hint' }, 'Else the session is only ended if its client is gone.'))),
        field('Reason', reason, 'The audit trail gets it.'),
        field(`Type the number ${session} to confirm`, typed),
      ),
      answer,
      el('div', { class: 'actions' }, order, cancel),
    );
    return [form];
  });
  reason.focus();
}

/** @param {string} result */
function resultBox(result) {
  if (result === 'done') return el('div', { class: 'box good' }, el('strong', {}, 'Done'), el('p', {}, 'The session has ended, and its locks are free or with the next in their queues.'));
  if (result === 'gone') return el('div', { class: 'box good' }, el('strong', {}, 'It had ended before'), el('p', {}, 'Nothing was to be done.'));
  if (result === 'attached') return el('div', { class: 'box warn' }, el('strong', {}, 'Its client is attached'), el('p', {}, 'The session was not ended. Stop the client, or choose “Even if its client is attached”.'));
  return el('div', { class: 'box warn' }, el('strong', {}, `The answer is “${result}”`), el('p', {}, 'This page does not know it. Look at the session again.'));
}
