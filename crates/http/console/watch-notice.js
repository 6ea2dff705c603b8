// @ts-check
// What stands above the locks while the watch of them is not as it should be.

import { el, fill } from './dom.js';
import { clock, count } from './format.js';
import { LOCKS_MAX, store } from './lock-store.js';
import { problemBox } from './problem-box.js';

/**
 * @param {HTMLElement} notice
 */
export function showWatchNotice(notice) {
  const { status } = store;
  /** @type {any[]} */
  const boxes = [];
  if (status.state === 'refused' && status.problem !== null) {
    const hint = status.problem.status === 403 ? 'If you may read some names only, choose one of them as the scope.' : '';
    boxes.push(problemBox('The locks can’t be watched', status.problem, { hint, retry: () => store.retry() }));
  }
  if (status.state === 'offline') {
    boxes.push(el('p', { class: 'box bad' }, `No connection to the node since ${clock(status.since)}. ${store.hasSynced ? 'The list is as it was then. ' : ''}It is tried again by itself; the button at the top right does it at once.`));
  }
  if (store.isTruncated) {
    boxes.push(el('p', { class: 'box warn' }, `There are more locks than this page shows: it keeps ${count(LOCKS_MAX)}. Choose a scope to see the others.`));
  }
  fill(notice, boxes);
}
