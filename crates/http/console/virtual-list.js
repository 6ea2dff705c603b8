// @ts-check
// A long list of rows of equal height, of which only the visible ones are in the DOM. The focus stays on the list; the active
// row is named by aria-activedescendant, so that it need not be in the DOM either.

import { el } from './dom.js';
import { sortHead } from './sort.js';

/** Rows above and below the visible ones, so that scrolling shows no gaps. */
const OVERSCAN = 6;
/** On narrow screens a row has two lines. Must be as in the style sheet. */
const NARROW = matchMedia('(max-width: 760px)');

/**
 * @template T
 * @typedef {object} Row
 * @property {HTMLElement} root
 * @property {(item: T, index: number, isActive: boolean) => void} update
 */

/**
 * @template T
 * @typedef {object} ListOptions
 * @property {string} label
 * @property {'grid' | 'treegrid'} role
 * @property {string} layout the class that gives the columns
 * @property {import('./sort.js').Column[]} columns
 * @property {() => Row<T>} createRow
 * @property {(item: T) => void} open Enter, or a double click
 * @property {(event: KeyboardEvent, item: T) => boolean} [key] whether it has handled a key for the active row
 * @property {(sort: string) => void} [onSort] a head was pressed
 */

let lists = 0;

/** @template {object} T */
export class VirtualList {
  /** @type {readonly T[]} */
  #items = [];
  /** @type {Map<T, Row<T>>} */
  #shown = new Map();
  /** @type {Row<T>[]} */
  #spare = [];
  #active = 0;
  #frame = 0;
  #height = 0;
  #options;
  #id = `list${++lists}`;

  /**
   * @param {ListOptions<T>} options
   * @param {AbortSignal} signal ends its listeners
   */
  constructor(options, signal) {
    this.#options = options;
    this.#height = NARROW.matches ? 54 : 32;
    const { role, label, layout, columns } = options;
    const { cells, show } = sortHead(columns, (sort) => options.onSort?.(sort));
    this.showSort = show;
    this.head = el('div', { role: 'row', class: `row head ${layout}`, 'aria-rowindex': 1 }, cells);
    this.body = el('div', { class: 'rows', role: 'presentation' });
    this.element = el('div', { class: 'list', role, 'aria-label': label, tabindex: 0 }, this.head, this.body);
    this.element.addEventListener('scroll', () => this.#schedule(), { passive: true });
    this.element.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => this.#onKey(event));
    this.element.addEventListener('focus', () => this.#schedule());
    this.element.addEventListener('blur', () => this.#schedule());
    this.body.addEventListener('mousedown', (/** @type {MouseEvent} */ event) => this.#activateAt(event));
    this.body.addEventListener('dblclick', (/** @type {MouseEvent} */ event) => {
      const item = this.itemAt(event.target);
      if (item !== null && !(event.target instanceof Element && event.target.closest('a, button'))) options.open(item);
    });
    const observer = new ResizeObserver(() => this.#schedule());
    observer.observe(this.element);
    NARROW.addEventListener('change', () => this.#resize(), { signal });
    signal.addEventListener('abort', () => {
      observer.disconnect();
      cancelAnimationFrame(this.#frame);
    });
  }

  /**
   * Shows other rows. The active row stays the same item if it is still there.
   *
   * @param {readonly T[]} items
   * @param {(item: T) => number} [indexOf] where an item is now, if that is known without a search; -1: nowhere
   */
  setItems(items, indexOf) {
    const active = this.#items[this.#active];
    this.#items = items;
    if (active !== undefined) {
      const at = indexOf === undefined ? items.indexOf(active) : indexOf(active);
      this.#active = at >= 0 && items[at] === active ? at : Math.max(0, Math.min(this.#active, items.length - 1));
    }
    this.element.setAttribute('aria-rowcount', String(items.length + 1));
    this.body.style.height = `${items.length * this.#height}px`;
    this.render();
  }

  get items() {
    return this.#items;
  }

  /** @returns {T | undefined} */
  get activeItem() {
    return this.#items[this.#active];
  }

  /** Brings the visible rows up to date. */
  render() {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / this.#height) - OVERSCAN);
    const last = Math.min(this.#items.length, Math.ceil((scrollTop + clientHeight) / this.#height) + OVERSCAN);
    const wanted = new Set(this.#items.slice(first, last));
    for (const [item, row] of this.#shown) {
      if (wanted.has(item)) continue;
      this.#shown.delete(item);
      this.#spare.push(row);
    }
    const hasFocus = document.activeElement === this.element;
    for (let index = first; index < last; index += 1) {
      this.#show(this.#items[index], index, hasFocus && index === this.#active);
    }
    for (const { root } of this.#spare) {
      root.hidden = true;
      // Two rows must not have the same id.
      root.id = '';
    }
    const hasRow = this.#items.length > 0 && this.#active >= first && this.#active < last;
    if (hasRow) this.element.setAttribute('aria-activedescendant', `${this.#id}-${this.#active}`);
    else this.element.removeAttribute('aria-activedescendant');
  }

  /**
   * The item whose row contains an element.
   *
   * @param {EventTarget | null} target
   * @returns {T | null}
   */
  itemAt(target) {
    const row = target instanceof Element ? target.closest('.row') : null;
    for (const [item, shown] of this.#shown) if (shown.root === row) return item;
    return null;
  }

  /**
   * Makes a row the active one, and scrolls to it.
   *
   * @param {number} index
   */
  activate(index) {
    if (this.#items.length === 0) return;
    this.#active = Math.max(0, Math.min(index, this.#items.length - 1));
    const top = this.#active * this.#height;
    const space = this.element.clientHeight - this.head.offsetHeight - this.#height;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top > this.element.scrollTop + space) this.element.scrollTop = top - space;
    this.render();
  }

  /**
   * @param {T} item
   * @param {number} index
   * @param {boolean} isActive
   */
  #show(item, index, isActive) {
    let row = this.#shown.get(item);
    if (row === undefined) {
      row = this.#spare.pop() ?? this.#create();
      this.#shown.set(item, row);
      row.root.hidden = false;
    }
    const { root } = row;
    const id = `${this.#id}-${index}`;
    if (root.id !== id) {
      root.id = id;
      root.setAttribute('aria-rowindex', String(index + 2));
      root.style.transform = `translateY(${index * this.#height}px)`;
      root.classList.toggle('odd', index % 2 === 1);
    }
    root.classList.toggle('active', isActive);
    row.update(item, index, isActive);
  }

  #create() {
    const row = this.#options.createRow();
    row.root.setAttribute('role', 'row');
    row.root.classList.add('row', this.#options.layout);
    this.body.append(row.root);
    return row;
  }

  #resize() {
    this.#height = NARROW.matches ? 54 : 32;
    for (const row of [...this.#shown.values(), ...this.#spare]) row.root.id = '';
    this.body.style.height = `${this.#items.length * this.#height}px`;
    this.activate(this.#active);
  }

  #schedule() {
    if (this.#frame !== 0) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.render();
    });
  }

  /** @param {MouseEvent} event */
  #activateAt(event) {
    const item = this.itemAt(event.target);
    if (item === null) return;
    this.#active = this.#items.indexOf(item);
    this.#schedule();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this.element) return;
    const item = this.#items[this.#active];
    if (item !== undefined && this.#options.key?.(event, item)) {
      event.preventDefault();
      return;
    }
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.#height) - 2);
    /** @type {Record<string, number>} */
    const targets = {
      ArrowDown: this.#active + 1,
      ArrowUp: this.#active - 1,
      PageDown: this.#active + page,
      PageUp: this.#active - page,
      Home: 0,
      End: this.#items.length - 1,
    };
    const target = targets[event.key];
    if (target !== undefined) {
      this.activate(target);
      event.preventDefault();
    } else if (event.key === 'Enter' && item !== undefined) {
      this.#options.open(item);
      event.preventDefault();
    }
  }
}
