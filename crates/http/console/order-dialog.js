// @ts-check
// The dialog of an order that ends what others have. It asks for a reason and for a number to be typed: what comes
// next has another number.

import { asProblem, isAbort } from './api.js';
import { el, fill, setText } from './dom.js';
import { field, openDialog } from './dialog.js';
import { problemBox } from './problem-box.js';

/**
 * @typedef {object} Order
 * @property {string} heading
 * @property {() => string} verb the text of the button that sends the order
 * @property {number} number
 * @property {string} numberName what is to be typed, in words
 * @property {any[]} before what stands above the reason
 * @property {string} [reasonHelp] absent: the order needs no reason
 * @property {any[]} [after] what stands below the reason
 * @property {(reason: string, stop: AbortSignal, progress: (text: string) => void) => Promise<any>} send `stop`: the dialog was closed
 * @property {boolean} [isStoppable] the dialog may be closed while the order is sent
 * @property {(answer: any) => { box: HTMLElement, isOver: boolean }} show `isOver`: the order need not be sent again
 * @property {string} refused the consequence of a refusal
 * @property {string} concerns what a repeated order concerns
 */

/**
 * @param {Order} order
 * @param {AbortSignal} signal closes the dialog
 * @param {() => void} done called after an answer
 */
export function openOrder(order, signal, done) {
  const { number } = order;
  const answer = el('div', { 'aria-live': 'polite' });
  const reason = el('input', { type: 'text', required: true, autocomplete: 'off', maxlength: 256 });
  const typed = el('input', { type: 'text', inputmode: 'numeric', autocomplete: 'off', spellcheck: 'false', class: 'num' });
  const button = el('button', { class: 'danger filled', disabled: true }, order.verb());
  const needsReason = order.reasonHelp !== undefined;
  const stop = new AbortController();
  let isSending = false;

  const check = () => {
    button.disabled = isSending || typed.value.trim() !== String(number) || (needsReason && reason.value.trim() === '');
    typed.setAttribute('aria-invalid', String(typed.value !== '' && !String(number).startsWith(typed.value.trim())));
  };

  const dialog = openDialog(order.heading, signal, (close) => {
    const form = el('form', { method: 'dialog', oninput: check, onchange: () => setText(button, order.verb()) });
    const cancel = el('button', { type: 'button', onclick: close }, 'Cancel');
    const setSending = (/** @type {boolean} */ is) => {
      isSending = is;
      form.closest('dialog')?.classList.toggle('sending', is && order.isStoppable !== true);
      if (order.isStoppable === true) setText(cancel, is ? 'Stop' : 'Cancel');
      check();
    };
    form.addEventListener('submit', async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (button.disabled) return;
      setSending(true);
      const sent = el('p', { class: 'dim' }, 'Sending the order…');
      fill(answer, sent);
      try {
        const { box, isOver } = order.show(await order.send(reason.value.trim(), stop.signal, (text) => setText(sent, text)));
        setSending(false);
        fill(answer, box);
        form.classList.toggle('over', isOver);
        if (isOver) setText(cancel, 'Close');
        if (isOver) cancel.focus();
      } catch (error) {
        if (isAbort(error)) return;
        setSending(false);
        const problem = asProblem(error);
        const isRefused = problem.status >= 400 && problem.status < 500;
        const hint = isRefused ? '' : `Whether the order has had its effect is unknown. It may be sent again: it concerns ${order.concerns} only.`;
        fill(answer, problemBox(isRefused ? order.refused : 'There was no answer to the order', problem, { hint }));
      }
      done();
    });
    form.append(
      el('div', { class: 'inputs' }, order.before, needsReason ? field('Reason', reason, order.reasonHelp) : [], order.after ?? [], field(`Type the ${order.numberName} ${number} to confirm`, typed)),
      answer,
      el('div', { class: 'actions' }, button, cancel),
    );
    return [form];
  });
  dialog.addEventListener('close', () => {
    stop.abort();
    if (isSending) done();
  });
  (needsReason ? reason : typed).focus();
}

/**
 * A radio button or checkbox with its meaning.
 *
 * @param {HTMLElement} input
 * @param {string} text
 * @param {string} meaning
 */
export function choice(input, text, meaning) {
  return el('label', { class: 'choice' }, input, el('span', {}, el('strong', {}, text), el('span', { class: 'hint' }, meaning)));
}
