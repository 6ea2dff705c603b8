// @ts-check
// Tables of holds and of waiting requests. Rows are kept by their key, so that a refresh takes the focus from no button.

import { el, fill, foreign, setText } from './dom.js';
import { count, dateTime, duration, exactly, utc } from './format.js';
import { modeText } from './changes.js';

/** @typedef {import('./lock-model.js').Hold & { value: string, wholeMeta: string, isBase64: boolean }} FullHold */

/**
 * A table whose rows are kept.
 *
 * @template T
 * @param {string} label
 * @param {string[]} columns
 * @param {(item: T) => string} keyOf
 * @param {(item: T, row: HTMLElement, columns: string[]) => void} render fills a row, if what it shows has changed
 */
export function keyedTable(label, columns, keyOf, render) {
  const body = el('tbody');
  /** @type {Map<string, HTMLElement>} */
  let rows = new Map();
  const element = el(
    'div',
    { class: 'table-frame' },
    el('table', { 'aria-label': label }, el('thead', {}, el('tr', {}, columns.map((text) => el('th', { scope: 'col' }, text)))), body),
  );
  return {
    element,
    /** @param {readonly T[]} items */
    show(items) {
      const next = new Map();
      let before = body.firstElementChild;
      for (const item of items) {
        const key = keyOf(item);
        const row = rows.get(key) ?? el('tr');
        render(item, row, columns);
        next.set(key, row);
        if (row === before) before = row.nextElementSibling;
        else body.insertBefore(row, before);
      }
      for (const [key, row] of rows) if (!next.has(key)) row.remove();
      rows = next;
    },
  };
}

/**
 * Fills a row with cells, unless it shows the same.
 *
 * @param {HTMLElement} row
 * @param {string[]} columns their names are shown beside the cells on narrow screens
 * @param {unknown} content what the cells depend on
 * @param {() => any[]} cells
 */
export function fillRow(row, columns, content, cells) {
  const now = JSON.stringify(content);
  if (row.dataset.shown === now) return;
  row.dataset.shown = now;
  fill(row, cells().map((cell, index) => el('td', { 'data-label': columns[index] }, cell)));
}

/**
 * The table of the holds of a lock.
 *
 * @param {(hold: FullHold) => void} onBreak
 */
export function holdTable(onBreak) {
  const columns = ['Token', 'Holder', 'Mode', 'State', 'Held for', 'Purpose', 'Value', 'Action'];
  const table = keyedTable('Holds', columns, (/** @type {FullHold} */ hold) => String(hold.token), (hold, row) => {
    const { since, closedUntil, ...rest } = hold;
    fillRow(row, columns, rest, () => [
      el('span', { class: 'num token' }, String(hold.token)),
      holderOf(hold),
      modeText(hold),
      stateCell(hold),
      ageCell(),
      hold.wholeMeta === '' ? '' : bytesText(hold.wholeMeta, hold.isBase64),
      hold.value === '' ? '' : bytesText(hold.value, hold.isBase64),
      el('button', { type: 'button', class: 'danger', 'aria-label': `Break the hold with token ${hold.token}`, onclick: () => onBreak(hold) }, 'Break…'),
    ]);
    tick(row, hold);
  });
  return table;
}

/**
 * The table of the requests that wait for a lock.
 */
export function queueTable() {
  const columns = ['Place', 'Client', 'Mode', 'Waiting for', 'Purpose'];
  return keyedTable('Queue', columns, (/** @type {any} */ waiter) => waiter.key, (waiter, row) => {
    const { since, queuedAt, ...rest } = waiter;
    fillRow(row, columns, rest, () => [
      el('span', { class: 'num' }, count(waiter.place)),
      holderOf(waiter),
      modeText(waiter),
      ageCell(),
      waiter.meta === '' ? '' : foreign(waiter.meta, 'wrap'),
    ]);
    showAge(row, since, queuedAt);
  });
}

/**
 * A session, by label, identity and number.
 *
 * @param {{ label: string, identity: string, session: number }} who
 */
export function holderOf({ label, identity, session }) {
  if (session === 0) return el('span', { class: 'dim' }, 'gone');
  return el(
    'span',
    { class: 'holder' },
    label === '' ? el('span', { class: 'dim' }, 'no label') : foreign(label),
    el('span', { class: 'sub' }, el('a', { href: `#/session/${session}` }, `session ${session}`), identity === '' ? null : [', ', foreign(identity)]),
  );
}

/** @param {import('./lock-model.js').Hold} hold */
export function stateCell(hold) {
  if (hold.state === 'held') {
    const cached = { '': null, cached: 'cached', recalled: 'cached, recalled' }[hold.cached];
    return [el('span', { class: 'state held' }, 'held'), cached === null ? null : el('span', { class: 'sub' }, cached)];
  }
  if (hold.state === 'closed') return el('span', { class: 'state closed' }, 'closed, ', el('span', { 'data-left': '' }));
  return [
    el('span', { class: 'state breaking' }, 'being broken'),
    el('span', { class: 'sub' }, hold.breakBy === '' ? 'by somebody who gave no name' : ['by ', foreign(hold.breakBy)], hold.breakReason === '' ? null : [': ', foreign(hold.breakReason, 'wrap')]),
  ];
}

/**
 * Text of a client that may be long, or base64 of bytes that are no text.
 *
 * @param {string} text
 * @param {boolean} isBase64
 */
function bytesText(text, isBase64) {
  return [foreign(text, 'wrap content'), isBase64 ? el('span', { class: 'sub' }, 'base64, where it is not text') : null];
}

/** An age, and since when: filled by `showAge`. */
function ageCell() {
  return [el('span', { class: 'num', 'data-time': '' }), el('span', { class: 'sub', 'data-since': '' })];
}

/**
 * @param {HTMLElement} row
 * @param {number} since in milliseconds since 1970 by this browser's clock, for the age; NaN: unknown
 * @param {number} start the same by the service's clock, to be shown
 */
function showAge(row, since, start) {
  const [time, wall] = [row.querySelector('[data-time]'), row.querySelector('[data-since]')];
  const age = Date.now() - since;
  if (time instanceof HTMLElement) {
    setText(time, Number.isNaN(age) ? 'unknown' : duration(age));
    time.title = Number.isNaN(age) ? '' : exactly(age);
  }
  if (wall instanceof HTMLElement) {
    setText(wall, Number.isNaN(start) ? '' : `since ${dateTime(start)}`);
    wall.title = utc(start);
  }
}

/**
 * Brings the times of a row up to date.
 *
 * @param {HTMLElement} row
 * @param {FullHold} hold
 */
function tick(row, hold) {
  showAge(row, hold.since, hold.grantedAt);
  const left = row.querySelector('[data-left]');
  if (left !== null) setText(left, `${duration(hold.closedUntil - Date.now())} left`);
}
