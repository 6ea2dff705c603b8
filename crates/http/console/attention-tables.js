// @ts-check
// The short lists of the first page: each has few lines, and says where the rest is.

import { el, fill, foreign, nameText, setText } from './dom.js';
import { count, counted, dateTime, duration, exactly, setting } from './format.js';
import { fillRow, holderOf, keyedTable, stateCell } from './hold-table.js';
import { lockHref } from './names.js';

/** @typedef {import('./lock-extremes.js').Extreme} Extreme */

/**
 * A list, what stands instead of it if it is empty, and a link to the rest.
 *
 * @template T
 * @param {string} label
 * @param {string[]} columns
 * @param {(item: T) => string} keyOf
 * @param {(item: T, row: HTMLElement, columns: string[]) => void} render
 */
function short(label, columns, keyOf, render) {
  const table = keyedTable(label, columns, keyOf, render);
  const none = el('p', { class: 'dim', hidden: true });
  const more = el('span', { class: 'dim' });
  return {
    element: table.element,
    none,
    more,
    /**
     * @param {readonly T[]} items
     * @param {string} otherwise empty: nothing
     */
    show(items, otherwise) {
      table.show(items);
      table.element.hidden = items.length === 0;
      none.hidden = items.length > 0 || otherwise === '';
      setText(none, otherwise);
    },
    /**
     * @param {number} total
     * @param {number} most those that are shown
     * @param {string} noun
     * @param {string} href
     * @param {string} [note]
     */
    showMore(total, most, noun, href, note = '') {
      const text = total > most ? `All ${counted(total, noun)}` : '';
      if (more.textContent === text + note) return;
      fill(more, text === '' ? null : el('a', { href }, text), note === '' ? null : el('span', {}, `${text === '' ? '' : ' '}${note}`));
    },
  };
}

export function attentionTables() {
  const keyOf = (/** @type {Extreme} */ it) => `${it.lock.name} ${it.hold?.token}`;
  const oldest = short('Oldest holds', ['Lock', 'Holder', 'Held for'], keyOf, ({ lock, hold }, row, columns) => {
    fillRow(row, columns, [lock.name, hold?.token, hold?.session], () => [
      lockCell(lock.name, hold?.meta),
      hold === undefined ? '' : holderOf(hold),
      el('span', { class: 'num nowrap', 'data-time': '' }),
    ]);
    if (hold !== undefined) showAge(row, hold);
  });
  const queued = short('Longest queues', ['Lock', 'Holder', 'Waiting'], keyOf, ({ lock, hold }, row, columns) => {
    fillRow(row, columns, [lock.name, hold?.token, hold?.session, lock.waiterCount], () => [
      lockCell(lock.name),
      hold === undefined ? el('span', { class: 'dim' }, 'nobody') : holderOf(hold),
      el('span', { class: 'num' }, count(lock.waiterCount)),
    ]);
  });
  const stopped = short('Being broken, or closed', ['Lock', 'State', 'Holder', 'Held for'], keyOf, ({ lock, hold }, row, columns) => {
    fillRow(row, columns, [lock.name, hold?.token, hold?.session, hold?.state], () => [
      lockCell(lock.name, hold?.meta),
      hold === undefined ? '' : stateCell(hold),
      hold === undefined ? '' : holderOf(hold),
      el('span', { class: 'num nowrap', 'data-time': '' }),
    ]);
    const left = row.querySelector('[data-left]');
    if (left !== null && hold !== undefined) setText(left, `${duration(hold.closedUntil - Date.now())} left`);
    if (hold !== undefined) showAge(row, hold);
  });
  const sessions = short('Sessions about to end', ['Session', 'Client', 'Left of its ttl', 'Requests'], (/** @type {any} */ it) => String(it.session), (it, row, columns) => {
    fillRow(row, columns, [it.session, it.requests], () => [
      el('a', { class: 'num', href: `#/session/${it.session}` }, `session ${it.session}`),
      el('span', {}, it.label === '' ? el('span', { class: 'dim' }, 'no label') : foreign(it.label), it.identity === '' ? null : el('span', { class: 'sub' }, foreign(it.identity))),
      el('span', { class: 'num low', 'data-time': '' }),
      el('span', { class: 'num' }, count(it.requests)),
    ]);
    const time = row.querySelector('[data-time]');
    if (time !== null) setText(time, `${duration(it.left_ms)} of ${setting(it.ttl_ms)}`);
  });
  return { oldest, queued, stopped, sessions };
}

/**
 * @param {string} name
 * @param {string} [purpose]
 */
function lockCell(name, purpose = '') {
  return [el('a', { href: lockHref(name) }, nameText(name, 'wrap')), purpose === '' ? null : el('span', { class: 'sub' }, foreign(purpose, 'wrap'))];
}

/**
 * @param {HTMLElement} row
 * @param {import('./lock-model.js').Hold} hold
 */
function showAge(row, hold) {
  const time = row.querySelector('[data-time]');
  if (!(time instanceof HTMLElement)) return;
  const age = Date.now() - hold.since;
  // A closed hold is nobody's any more; its rest stands beside its state.
  const isShown = hold.state !== 'closed' && !Number.isNaN(age);
  setText(time, isShown ? duration(age) : '');
  time.title = isShown ? `since ${dateTime(hold.grantedAt)}\n${exactly(age)}` : '';
}
