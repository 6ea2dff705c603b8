// @ts-check
// The page of one lock: holds, queue, what has happened, and the orders of operators.

import { get } from './api.js';
import { openBreak } from './break-dialog.js';
import { el, fill, foreign, panel, setText, visible } from './dom.js';
import { count, counted } from './format.js';
import { holdTable, queueTable } from './hold-table.js';
import { openLimit } from './limit-dialog.js';
import { lockHistory } from './lock-history.js';
import { holdOf, lockOf, stateOf } from './lock-model.js';
import { store } from './lock-store.js';
import { encoded, lockPath, viewHref } from './names.js';
import { problemBox } from './problem-box.js';
import { refresh } from './refresh.js';

/** How often the lock is read without a change, in milliseconds: for its queue. */
const REFRESH_MS = 2_000;
/** Pages of holds that are read at most, of 256 each. */
const PAGES_MAX = 4;

/** @param {import('./router.js').Route} route */
export function lockTitle(route) {
  return route.rest === '' ? 'Lock' : visible(route.rest);
}

/**
 * @param {import('./router.js').Route} route
 * @param {HTMLElement} root
 * @param {AbortSignal} signal
 */
export function mountLock(route, root, signal) {
  const name = route.rest;
  if (name === '') {
    fill(root, el('p', { class: 'box warn' }, 'The address names no lock: it ends with the lock’s name. ', el('a', { href: '#/locks' }, 'All locks')));
    return;
  }
  let waitersMax = 100;
  /** @type {any} */
  let lock = null;

  const state = el('span', { class: 'state' });
  const limit = el('span', { class: 'dim' });
  const failed = el('div');
  const holds = holdTable((hold) => openBreak(name, hold, signal, acted));
  const queue = queueTable();
  const holdsNote = el('p', { class: 'dim' });
  const queueNote = el('p', { class: 'dim' });
  const queueMore = el('button', { type: 'button', hidden: true, onclick: moreWaiters }, 'Show up to 1,000');
  const head = el(
    'div',
    { class: 'page-head' },
    el('h1', { class: 'lock-name' }, path(name)),
    el('p', { class: 'facts' }, state, limit, el('span', { class: 'push' }), el('button', { type: 'button', onclick: () => openLimit(name, lock, signal, acted) }, 'Set limit…')),
  );
  const history = lockHistory(name, signal);
  fill(
    root,
    head,
    failed,
    panel('Holds', holdsNote, holds.element),
    panel('Queue', [queueNote, queueMore], queue.element),
    history.element,
  );

  holds.element.hidden = queue.element.hidden = true;
  const acted = () => {
    again();
    void history.renew();
  };

  const again = refresh(REFRESH_MS, signal, read, show, (problem) => {
    fill(failed, problemBox('The lock can’t be read', problem, { retry: () => again() }));
    head.classList.add('stale');
  });
  store.onName(
    name,
    () => {
      again();
      history.draw();
    },
    signal,
  );
  const ticker = setInterval(() => {
    if (lock !== null) holds.show(lock.full);
  }, 1_000);
  signal.addEventListener('abort', () => clearInterval(ticker));

  /** @param {AbortSignal} inner */
  async function read(inner) {
    const json = await get(`${lockPath(name)}?waiters_max=${waitersMax}`, inner);
    let next = json.next_holds_after;
    for (let page = 1; next !== undefined && page < PAGES_MAX; page += 1) {
      const more = await get(`${lockPath(name)}?holds_after=${encoded(String(next))}`, inner);
      json.holds.push(...more.holds);
      next = more.next_holds_after;
    }
    return json;
  }

  /** @param {any} json */
  function show(json) {
    fill(failed);
    head.classList.remove('stale');
    const now = Date.now();
    const full = json.holds.map((/** @type {any} */ hold) => ({
      ...holdOf(hold, now),
      value: hold.value ?? hold.value_base64 ?? '',
      wholeMeta: hold.meta ?? hold.meta_base64 ?? '',
      isBase64: hold.value_base64 !== undefined || hold.meta_base64 !== undefined,
    }));
    lock = { ...lockOf(json, 0), full };
    const { kind, text } = stateOf(lock);
    state.className = `state big ${kind}`;
    setText(state, text);
    setText(limit, limitText(lock));
    holds.show(full);
    holds.element.hidden = full.length === 0;
    setText(holdsNote, holdsText(lock));
    const waiters = json.waiters.map((/** @type {any} */ waiter, /** @type {number} */ index) => ({
      key: `${waiter.session} ${index}`,
      place: index + 1,
      session: waiter.session,
      label: waiter.label,
      identity: waiter.identity,
      mode: waiter.mode,
      subtree: waiter.subtree,
      meta: waiter.meta ?? waiter.meta_base64 ?? '',
      since: typeof waiter.waiting_for_ms === 'number' ? Date.now() - waiter.waiting_for_ms : NaN,
      queuedAt: Date.parse(waiter.since),
    }));
    queue.show(waiters);
    queue.element.hidden = waiters.length === 0;
    const waits = lock.waiterCount;
    setText(queueNote, waits === 0 ? 'Nobody waits.' : waits > waiters.length ? `The first ${count(waiters.length)} of ${count(waits)}` : `${counted(waits, 'request waits', 'requests wait')}`);
    queueMore.hidden = waits <= waiters.length || waitersMax > 100;
  }

  function moreWaiters() {
    waitersMax = 1_000;
    again();
  }

}

/**
 * The name, each part a link to the locks below it.
 *
 * @param {string} name
 */
function path(name) {
  const segments = name.split('/');
  return segments.map((segment, index) => {
    const upTo = segments.slice(0, index + 1).join('/');
    const isLast = index === segments.length - 1;
    if (isLast) return foreign(segment, 'wrap');
    return [el('a', { href: viewHref('locks', { prefix: `${upTo}/` }) }, foreign(segment)), el('span', { class: 'slash' }, '/')];
  }).flat();
}

/** @param {import('./lock-model.js').Lock} lock */
function limitText(lock) {
  if (lock.permits === undefined) return '';
  const source = lock.permitsStored ? 'set by an operator' : 'as its requests say';
  return `limit of ${counted(lock.permits, 'permit')}, ${source}`;
}

/** @param {import('./lock-model.js').Lock & { full: any[] }} lock */
function holdsText(lock) {
  if (lock.holdCount === 0) return 'Nobody holds it.';
  if (lock.full.length < lock.holdCount) return `The first ${count(lock.full.length)} of ${count(lock.holdCount)}`;
  return counted(lock.holdCount, 'hold');
}
