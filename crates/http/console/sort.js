// @ts-check
// Lists that are sorted by a column: their heads, and the order. A sort is the name of a column, with `-` before it if it
// descends; empty: the list's own order.

import { el } from './dom.js';

/**
 * @typedef {object} Column
 * @property {string} text
 * @property {string} className
 * @property {string} [sort] the name to sort by; absent: not sortable
 * @property {'up' | 'down' | 'own'} [first] which way the first press sorts; `own`: the list's own order ascends by this column
 */

/**
 * The cells of a list's head; those of columns that can be sorted contain a button.
 *
 * @param {readonly Column[]} columns
 * @param {(sort: string) => void} onSort
 */
export function sortHead(columns, onSort) {
  let [shown, refused, isShown] = ['', '', false];
  const buttons = columns.map((column) => column.sort === undefined ? null : el('button', { type: 'button', class: 'sort', onclick: () => onSort(nextSort(shown, column)) }, column.text));
  const cells = columns.map(({ text, className }, index) => el('span', { role: 'columnheader', class: className }, buttons[index] ?? text));
  return {
    cells,
    /**
     * @param {string} sort
     * @param {string} refusal why the list can't be sorted now; empty: it can
     */
    show(sort, refusal) {
      if (isShown && sort === shown && refusal === refused) return;
      [shown, refused, isShown] = [sort, refusal, true];
      for (const [index, column] of columns.entries()) {
        const button = buttons[index];
        if (button === null) continue;
        const order = sort === `-${column.sort}` ? 'descending' : sort === column.sort || (sort === '' && column.first === 'own') ? 'ascending' : '';
        if (order === '') cells[index].removeAttribute('aria-sort');
        else cells[index].setAttribute('aria-sort', order);
        button.disabled = refusal !== '';
        button.title = refusal;
      }
    },
  };
}

/**
 * The sort after a press: one way, the other way, the list's own order.
 *
 * @param {string} sort
 * @param {Column} column
 */
function nextSort(sort, { sort: name = '', first }) {
  if (first === 'own') return sort === '' ? `-${name}` : '';
  const [one, other] = first === 'down' ? [`-${name}`, name] : [name, `-${name}`];
  return sort === one ? other : sort === other ? '' : one;
}

/**
 * What a sort compares; undefined: it is no sort by one of these values.
 *
 * @template T
 * @param {Record<string, (item: T) => number | string>} values by the names of columns
 * @param {string} sort
 */
export function valueBy(values, sort) {
  const name = sort.replace(/^-/, '');
  return Object.hasOwn(values, name) ? values[name] : undefined;
}

/**
 * The items in order. Those without a value come last both ways, and equal ones stay as they were.
 *
 * @template T
 * @param {readonly T[]} items
 * @param {string} sort not empty
 * @param {(item: T) => number | string} valueOf NaN or empty: it has none
 * @returns {T[]}
 */
export function sorted(items, sort, valueOf) {
  const sign = sort.startsWith('-') ? -1 : 1;
  const values = items.map(valueOf);
  const order = (/** @type {number} */ a, /** @type {number} */ b) => {
    const [one, other] = [values[a], values[b]];
    const [isNone, isOtherNone] = [one === '' || one !== one, other === '' || other !== other];
    if (isNone || isOtherNone) return Number(isNone) - Number(isOtherNone);
    return one < other ? -sign : one > other ? sign : 0;
  };
  return Array.from(items.keys()).sort(order).map((at) => items[at]);
}
