// @ts-check
// The state of the watch's connection, in the header of every view.

import { setText } from './dom.js';
import { clock, count, dateTime } from './format.js';
import { store } from './lock-store.js';

/** Shows it, and keeps it up to date. */
export function showConnection() {
  const button = /** @type {HTMLElement} */ (document.getElementById('connection'));
  const text = /** @type {HTMLElement} */ (document.getElementById('connection-text'));
  const rate = /** @type {HTMLElement} */ (document.getElementById('rate'));
  let changes = 0;

  const update = () => {
    const { state, since, retryAt, problem } = store.status;
    button.dataset.state = state;
    setText(text, words(state, since));
    const next = retryAt > 0 ? `Next try at ${clock(retryAt)}. ` : '';
    button.title = `${problem === null ? `Since ${dateTime(since)}.` : problem.detail} ${next}Press to connect again.`;
  };
  button.addEventListener('click', () => store.retry());
  store.onStatus(update);
  setInterval(() => {
    // Beside the live region: a number that changes each second must not be read out.
    const perSecond = store.changeCount - changes;
    changes = store.changeCount;
    setText(rate, perSecond > 0 && store.status.state === 'live' ? `${count(perSecond)}/s` : '');
    rate.title = 'Changes of locks per second';
  }, 1_000);
  update();
}

/**
 * @param {import('./watch.js').WatchStatus['state']} state
 * @param {number} since
 */
function words(state, since) {
  switch (state) {
    case 'live':
      return 'Live';
    case 'loading':
      return 'Loading locks';
    case 'connecting':
      return 'Connecting';
    case 'reconnecting':
      return 'Reconnecting';
    case 'offline':
      return `Offline since ${clock(since)}`;
    case 'refused':
      return 'Watch refused';
    case 'signed-out':
      return 'Not signed in';
  }
}
