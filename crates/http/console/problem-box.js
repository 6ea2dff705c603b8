// @ts-check
// An error, shown where its consequence is. It says what failed, the service's explanation in full, and what to do.

import { el } from './dom.js';
import { signIn } from './sign-in.js';
import { token } from './token.js';

/**
 * @param {string} what what did not work, for people
 * @param {import('./api.js').Problem} problem
 * @param {{ hint?: string, retry?: () => void }} [more]
 */
export function problemBox(what, problem, { hint = '', retry } = {}) {
  const { status, code, detail } = problem;
  // Without TLS, who shows no token is anonymous, and is told 403.
  const mayHelp = status === 401 || (status === 403 && token() === '');
  const source = [status > 0 ? `HTTP ${status}` : '', code].filter((part) => part !== '').join(', ');
  return el(
    'div',
    { class: `box ${status === 403 || status === 401 ? 'warn' : 'bad'}`, role: 'alert' },
    el('strong', {}, status === 403 ? `${what}: permission is missing` : what),
    el('p', {}, el('bdi', { class: 'detail', dir: 'auto' }, detail)),
    hint === '' ? null : el('p', {}, hint),
    el(
      'p',
      { class: 'actions' },
      retry ? el('button', { type: 'button', onclick: retry }, 'Try again') : null,
      mayHelp ? el('button', { type: 'button', onclick: () => signIn(problem) }, 'Sign in') : null,
      source === '' ? null : el('span', { class: 'hint' }, source),
    ),
  );
}
