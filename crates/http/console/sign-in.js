// @ts-check
// Asks for a bearer token when the service answers 401.

import { access } from './api.js';
import { el, fill } from './dom.js';
import { field, openDialog } from './dialog.js';
import { forget, keep } from './token.js';

/** Fires `changed` after a token was given or forgotten. */
export const identity = new EventTarget();

/** @type {HTMLDialogElement | null} */
let shown = null;
/** Closed without a token: the page does not ask again by itself until somebody wants to sign in. */
let isDismissed = false;

/** Asks whenever a call is answered 401. */
export function watchAccess() {
  access.addEventListener('unauthenticated', (event) => {
    const { problem, hadToken } = /** @type {CustomEvent} */ (event).detail;
    if (hadToken) isDismissed = false;
    if (!isDismissed) signIn(problem);
  });
}

/** @param {import('./api.js').Problem | null} problem why a token is needed */
export function signIn(problem) {
  if (shown !== null) return;
  isDismissed = false;
  const input = el('input', { type: 'password', autocomplete: 'off', spellcheck: 'false', required: true });
  const why = el('p', { class: 'box warn', hidden: problem === null });
  if (problem !== null) fill(why, el('bdi', { dir: 'auto' }, problem.detail));
  let isDone = false;
  shown = openDialog('Sign in', null, (close) => [
    why,
    el('p', {}, 'This node asks who calls. Paste a token; ', el('code', {}, 'lockkeeper token add NAME'), ' makes one.'),
    el(
      'form',
      {
        method: 'dialog',
        onsubmit: (/** @type {Event} */ event) => {
          event.preventDefault();
          const value = input.value.trim();
          if (value === '') return;
          // Other characters can't be in a header.
          if (!/^[\x21-\x7e]+$/.test(value)) {
            why.hidden = false;
            fill(why, 'A token has printable ASCII characters only, without spaces. Paste it again.');
            return;
          }
          isDone = true;
          keep(value);
          close();
          identity.dispatchEvent(new Event('changed'));
        },
      },
      field('Token', input, 'It stays in this tab, until the tab is closed or you sign out.'),
      el('div', { class: 'actions' }, el('button', { class: 'primary' }, 'Sign in'), el('button', { type: 'button', onclick: close }, 'Cancel')),
    ),
  ]);
  shown.addEventListener('close', () => {
    shown = null;
    isDismissed = !isDone;
  });
  input.focus();
}

export function signOut() {
  forget();
  isDismissed = false;
  identity.dispatchEvent(new Event('changed'));
}
