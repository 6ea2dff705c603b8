// @ts-check
// The order to store a lock's number of permits, or to remove the stored one.

import { asProblem, isAbort, post } from './api.js';
import { el, fill, nameText } from './dom.js';
import { count } from './format.js';
import { field, openDialog } from './dialog.js';
import { problemBox } from './problem-box.js';

const PERMITS_MAX = 65_536;

/**
 * @param {string} name
 * @param {import('./lock-model.js').Lock | null} lock as it is now, if known
 * @param {AbortSignal} signal closes the dialog
 * @param {() => void} done called after an answer
 */
export function openLimit(name, lock, signal, done) {
  const answer = el('div', { 'aria-live': 'polite' });
  const permits = el('input', { type: 'number', min: 1, max: PERMITS_MAX, step: 1, class: 'num', value: lock?.permits === undefined ? '' : String(lock.permits) });
  const set = el('button', { class: 'primary' }, 'Set the limit');
  const remove = el('button', { type: 'button', disabled: lock !== null && !lock.permitsStored }, 'Remove the stored limit');

  openDialog('Set the limit of permits', signal, (close) => {
    const cancel = el('button', { type: 'button', onclick: close }, 'Cancel');
    const form = el('form', { method: 'dialog', novalidate: true });
    const send = async (/** @type {number | null} */ number) => {
      set.disabled = remove.disabled = true;
      const dialog = form.closest('dialog');
      dialog?.classList.add('sending');
      try {
        await post('v1/set-limit', { name, permits: number }, signal);
        const text = number === null ? 'The stored limit is removed. While permits are held or waited for, their number stays in force.' : `The limit is ${count(number)}.`;
        fill(answer, el('div', { class: 'box good' }, el('strong', {}, 'Done'), el('p', {}, text)));
        form.classList.add('over');
        cancel.textContent = 'Close';
        cancel.focus();
      } catch (error) {
        if (isAbort(error)) return;
        const problem = asProblem(error);
        const isRefused = problem.status >= 400 && problem.status < 500;
        const hint = isRefused ? '' : 'Whether the order has had its effect is unknown: look at the lock, then repeat it.';
        fill(answer, problemBox(isRefused ? 'The limit was not changed' : 'There was no answer to the order', problem, { hint }));
        set.disabled = remove.disabled = false;
      }
      dialog?.classList.remove('sending');
      done();
    };
    form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      if (set.disabled) return;
      const number = Number(permits.value);
      if (permits.value === '' || !Number.isInteger(number) || number < 1 || number > PERMITS_MAX) {
        fill(answer, el('p', { class: 'box warn' }, `Give a whole number from 1 to ${count(PERMITS_MAX)}.`));
        permits.focus();
        return;
      }
      void send(number);
    });
    remove.addEventListener('click', () => void send(null));
    form.append(
      el('div', { class: 'inputs' },
        el('p', {}, 'A lock with permits is a semaphore: so many holders may have it at one time. The stored limit overrides the numbers that clients ask with, at once.'),
        el('p', {}, 'A lower limit takes no permit away: holders keep theirs, and the next is granted when fewer than the limit are in use.'),
        el('dl', { class: 'short' }, el('dt', {}, 'Lock'), el('dd', {}, nameText(name, 'wrap')), el('dt', {}, 'Limit now'), el('dd', {}, limitNow(lock))),
        field('Permits', permits, `1 to ${count(PERMITS_MAX)}`),
      ),
      answer,
      el('div', { class: 'actions' }, set, remove, cancel),
    );
    return [form];
  });
  permits.select();
}

/** @param {import('./lock-model.js').Lock | null} lock */
function limitNow(lock) {
  if (lock === null) return 'unknown';
  // A lock that is not in use has a stored limit too; the service shows it.
  if (lock.permits === undefined) return 'none';
  return `${count(lock.permits)}, ${lock.permitsStored ? 'stored by an operator' : 'as its requests say'}`;
}
