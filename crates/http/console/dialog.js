// @ts-check
// Modal dialogs. The browser keeps the focus inside, closes at Esc, and gives the focus back.

import { el } from './dom.js';

let dialogs = 0;

/**
 * Opens a dialog.
 *
 * @param {string} heading
 * @param {AbortSignal | null} signal closes it, as when its view is left
 * @param {(close: () => void) => any[]} content makes what stands below the heading
 * @returns {HTMLDialogElement}
 */
export function openDialog(heading, signal, content) {
  const id = `d${++dialogs}`;
  /** @type {HTMLDialogElement} */
  const dialog = el('dialog', { 'aria-labelledby': id });
  const close = () => dialog.close();
  const closeByHand = () => dialog.classList.contains('sending') || close();
  dialog.append(
    el('div', { class: 'dialog-head' }, el('h2', { id }, heading), el('button', { type: 'button', class: 'plain', 'aria-label': 'Close', onclick: closeByHand }, '×')),
    ...content(closeByHand).filter((child) => child),
  );
  dialog.addEventListener('close', () => {
    signal?.removeEventListener('abort', close);
    dialog.remove();
  });
  // While an order is on its way, its answer must have a place to be shown.
  dialog.addEventListener('cancel', (event) => dialog.classList.contains('sending') && event.preventDefault());
  signal?.addEventListener('abort', close);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * A labelled field.
 *
 * @param {string} label
 * @param {HTMLElement} input
 * @param {string} [help]
 */
export function field(label, input, help = '') {
  const id = `f${++dialogs}`;
  input.id = id;
  if (help !== '') input.setAttribute('aria-describedby', `${id}h`);
  return el('div', { class: 'field' }, el('label', { for: id }, label), input, help === '' ? null : el('span', { class: 'hint', id: `${id}h` }, help));
}
