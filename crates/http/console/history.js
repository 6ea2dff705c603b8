// @ts-check
// The changes that the watch has shown since the page was opened, in bounded memory.

/** @typedef {import('./changes.js').Change & { at: number, isLate: boolean }} Entry */

/** The most entries of a lock. */
export const ENTRIES_MAX = 200;
/** The most entries of all locks that nobody looks at. */
const RECENT_MAX = 20_000;
/** The most locks whose entries are kept apart since their page was opened. */
const OPENED_MAX = 50;

export class History {
  /**
   * The last changes of all locks: a ring.
   * @type {{ name: string, entry: Entry }[]}
   */
  #recent = [];
  #next = 0;
  /**
   * Entries of the locks whose page was opened: changes of busy locks do not push them out.
   * @type {Map<string, Entry[]>}
   */
  #opened = new Map();

  /**
   * @param {string} name
   * @param {import('./changes.js').Change} change
   * @param {boolean} isLate it happened while there was no connection, so the time is that of its discovery
   */
  add(name, change, isLate) {
    const entry = { ...change, at: Date.now(), isLate };
    this.#recent[this.#next] = { name, entry };
    this.#next = (this.#next + 1) % RECENT_MAX;
    const opened = this.#opened.get(name);
    if (opened === undefined) return;
    opened.push(entry);
    if (opened.length > ENTRIES_MAX) opened.shift();
  }

  /**
   * The entries of a lock, oldest first. The same array grows with later changes.
   *
   * @param {string} name
   * @returns {readonly Entry[]}
   */
  of(name) {
    const known = this.#opened.get(name);
    // Set again, so that the lock that was longest not opened is the first to be dropped.
    this.#opened.delete(name);
    const entries = known ?? this.#find(name);
    this.#opened.set(name, entries);
    if (this.#opened.size > OPENED_MAX) {
      const [longest] = this.#opened.keys();
      if (longest !== undefined) this.#opened.delete(longest);
    }
    return entries;
  }

  /** @param {string} name */
  #find(name) {
    const inOrder = [...this.#recent.slice(this.#next), ...this.#recent.slice(0, this.#next)];
    const found = inOrder.filter((it) => it.name === name).map((it) => it.entry);
    return found.slice(-ENTRIES_MAX);
  }
}
