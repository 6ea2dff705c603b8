// @ts-check
// The order to end a session whose client is not this page.

import { post } from './api.js';
import { el, foreign } from './dom.js';
import { count } from './format.js';
import { choice, openOrder } from './order-dialog.js';

/**
 * @param {import('./view-sessions.js').Session} found
 * @param {AbortSignal} signal closes the dialog
 * @param {() => void} done called after an answer
 */
export function openEndSession(found, signal, done) {
  const { session, label, requests } = found;
  const now = el('input', { type: 'checkbox' });
  openOrder(
    {
      heading: 'End a session',
      verb: () => 'End the session',
      number: session,
      numberName: 'number',
      before: [
        el('dl', { class: 'short' }, el('dt', {}, 'Session'), el('dd', { class: 'num' }, String(session)), el('dt', {}, 'Label'), el('dd', {}, label === '' ? 'none' : foreign(label, 'wrap')), el('dt', {}, 'Requests'), el('dd', { class: 'num' }, count(requests))),
        el('p', {}, 'All its locks are released at once, and all its waiting requests leave their queues, as if its ttl were over. Whoever works under these locks is not stopped: only fencing tokens protect what they write.'),
        choice(now, 'Even if its client is attached', 'Else the session is only ended if its client is gone.'),
      ],
      reasonHelp: 'The audit trail gets it.',
      send: (reason) => post('v1/end-session', { session, reason, now: now.checked }, signal),
      show: ({ result }) => ({ box: resultBox(String(result)), isOver: result === 'done' || result === 'gone' }),
      refused: 'The session was not ended',
      concerns: 'this session',
    },
    signal,
    done,
  );
}

/** @param {string} result */
function resultBox(result) {
  if (result === 'done') return el('div', { class: 'box good' }, el('strong', {}, 'Done'), el('p', {}, 'The session has ended, and its locks are free or with the next in their queues.'));
  if (result === 'gone') return el('div', { class: 'box good' }, el('strong', {}, 'It had ended before'), el('p', {}, 'Nothing was to be done.'));
  if (result === 'attached') return el('div', { class: 'box warn' }, el('strong', {}, 'Its client is attached'), el('p', {}, 'The session was not ended. Stop the client, or choose “Even if its client is attached”.'));
  return el('div', { class: 'box warn' }, el('strong', {}, `The answer is “${result}”`), el('p', {}, 'This page does not know it. Look at the session again.'));
}
