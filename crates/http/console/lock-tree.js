// @ts-check
// The names of locks as a sorted tree, with sums for each folder. A change costs a step per segment of its name; the list of
// visible rows is built again only when rows came or went, and at most once per frame.

import { covers, sortKey } from './names.js';
import { stateOf, whoOf } from './lock-model.js';
import { sorted, valueBy } from './sort.js';

/** @typedef {import('./lock-model.js').Lock} Lock */

/** How long a lock that became free stays visible, in milliseconds: locks that are taken again at once do not make rows jump. */
const LINGER_MS = 2_000;
/** Up to so many new or gone children are moved one by one; more are sorted or filtered in one go. */
const FEW = 32;

/**
 * What the flat list may be sorted by, but the name. What was last known of a lock that has just become free counts.
 * @type {Record<string, (node: TreeNode) => number | string>}
 */
const VALUES = {
  state: ({ lock }) => (lock === null ? '' : stateOf(lock).text),
  holder: ({ lock }) => (lock?.holds[0] === undefined ? '' : whoOf(lock.holds[0]).toLowerCase()),
  token: ({ lock }) => lock?.holds[0]?.token ?? NaN,
  // Of two ages that grow the order never changes, so that which is sorted by is the time of the grant.
  held: ({ lock }) => (lock?.holds[0] === undefined || lock.holds[0].state === 'closed' ? NaN : -lock.holds[0].grantedAt),
  waiting: ({ lock }) => lock?.waiterCount || NaN,
};

/** What a lock, or all locks at and below a name, add up to. */
class Sums {
  /** Locks that pass the filter; those just freed too. */
  rows = 0;
  used = 0;
  waiting = 0;
  breaking = 0;
  closed = 0;
}

export class TreeNode {
  /** @type {Map<string, TreeNode>} */
  children = new Map();
  /** @type {TreeNode[]} */
  sorted = [];
  /** @type {TreeNode[]} */
  added = [];
  /** @type {Set<TreeNode>} */
  gone = new Set();
  /** @type {Lock | null} */
  lock = null;
  /** When it became free, in milliseconds since 1970; 0: it is in use. */
  freedAt = 0;
  /** What its own lock counts for. */
  own = new Sums();
  /** The same of all locks at and below it. */
  all = new Sums();
  /** Rises whenever its row may look different. */
  version = 0;
  /** Its place among the rows, and among its visible siblings; set when the rows are built. */
  index = -1;
  position = 0;
  siblings = 0;

  /**
   * @param {string} segment
   * @param {string} name
   * @param {TreeNode | null} parent
   */
  constructor(segment, name, parent) {
    this.segment = segment;
    this.name = name;
    this.parent = parent;
    /** @type {number} */
    this.depth = parent === null ? 0 : parent.depth + 1;
    this.key = sortKey(segment);
  }

  /** Whether locks below it pass the filter. */
  get isFolder() {
    return this.all.rows > this.own.rows;
  }
}

/** Which folders are expanded. Outlives a tree: who comes back to the view finds it as it was left. */
export class Expansion {
  /** Folders are expanded unless they are in `toggled`, or the other way round. A filter has its own. */
  byDefault = { plain: false, filtered: true };
  /** @type {{ plain: Set<string>, filtered: Set<string> }} */
  toggled = { plain: new Set(), filtered: new Set() };
}

export class LockTree {
  root = new TreeNode('', '', null);
  /** Rows in the order of the page. */
  rows = /** @type {TreeNode[]} */ ([]);
  isFlat = false;
  #isDirty = true;
  /** Whether a lock has changed since the last update. */
  #hasChanged = true;
  /** Of the flat list, as in sort.js. */
  #sort = '';
  /** @type {(lock: Lock) => boolean} */
  #filter = () => true;
  #isFiltered = false;
  #expansion;
  #opened = '';
  /** @type {TreeNode[]} */
  #freed = [];

  /** @param {Expansion} expansion */
  constructor(expansion) {
    this.#expansion = expansion;
  }

  /**
   * @param {string} name
   * @param {Lock | null} lock null: it is free
   */
  set(name, lock) {
    const node = lock === null ? this.find(name) : this.#ensure(name);
    if (node === null || (lock === null && node.freedAt > 0)) return;
    if (lock === null) {
      node.freedAt = Date.now();
      this.#freed.push(node);
    } else {
      node.lock = lock;
      node.freedAt = 0;
    }
    this.#count(node);
  }

  /** @param {string} name */
  find(name) {
    /** @type {TreeNode | undefined} */
    let node = this.root;
    for (const segment of name.split('/')) {
      node = node.children.get(segment);
      if (node === undefined) return null;
    }
    return node;
  }

  /**
   * Shows only the locks that pass.
   *
   * @param {((lock: Lock) => boolean) | null} filter null: all
   */
  setFilter(filter) {
    this.#filter = filter ?? (() => true);
    this.#isFiltered = filter !== null;
    const recount = (/** @type {TreeNode} */ node) => {
      for (const child of node.children.values()) recount(child);
      this.#count(node);
    };
    recount(this.root);
    this.#isDirty = true;
  }

  /** @param {boolean} isFlat */
  setFlat(isFlat) {
    this.isFlat = isFlat;
    this.#isDirty = true;
  }

  /**
   * Sorts the flat list by a column.
   *
   * @param {string} sort as in sort.js
   */
  setSort(sort) {
    if (sort === this.#sort) return;
    this.#sort = sort;
    this.#isDirty = true;
  }

  /**
   * Expands a folder and those above it, until somebody collapses them.
   *
   * @param {string} name
   */
  setOpened(name) {
    this.#opened = name;
    this.#isDirty = true;
  }

  /** @param {TreeNode} node */
  isExpanded(node) {
    const which = this.#isFiltered ? 'filtered' : 'plain';
    const byDefault = this.#expansion.byDefault[which] || (this.#opened !== '' && covers(node.name, this.#opened));
    return byDefault !== this.#expansion.toggled[which].has(node.name);
  }

  /** @param {TreeNode} node */
  toggle(node) {
    const toggled = this.#expansion.toggled[this.#isFiltered ? 'filtered' : 'plain'];
    if (!toggled.delete(node.name)) toggled.add(node.name);
    node.version += 1;
    this.#isDirty = true;
  }

  /** @param {boolean} isExpanded */
  expandAll(isExpanded) {
    const which = this.#isFiltered ? 'filtered' : 'plain';
    this.#expansion.byDefault[which] = isExpanded;
    this.#expansion.toggled[which].clear();
    for (const row of this.rows) row.version += 1;
    this.#isDirty = true;
  }

  /**
   * Brings `rows` up to date. If rows have come or gone, it is another array then.
   *
   * @param {number} now in milliseconds since 1970
   */
  update(now) {
    this.#sweep(now);
    const isDirty = this.#isDirty;
    const valueOf = this.isFlat ? valueBy(VALUES, this.#sort) : undefined;
    if (!isDirty && (valueOf === undefined || !this.#hasChanged)) return;
    this.#isDirty = this.#hasChanged = false;
    if (isDirty) {
      for (const row of this.rows) row.index = -1;
      this.rows = [];
      this.#visit(this.root);
      if (this.isFlat && this.#sort === '-name') this.#order(this.rows.reverse());
    }
    if (valueOf !== undefined) this.#order(sorted(this.rows, this.#sort, valueOf));
  }

  /** @param {TreeNode[]} rows */
  #order(rows) {
    this.rows = rows;
    for (let index = 0; index < rows.length; index += 1) rows[index].index = index;
  }

  /** @param {string} name */
  #ensure(name) {
    let node = this.root;
    let end = 0;
    for (const segment of name.split('/')) {
      end += (end === 0 ? 0 : 1) + segment.length;
      let child = node.children.get(segment);
      if (child === undefined) {
        child = new TreeNode(segment, name.slice(0, end), node);
        node.children.set(segment, child);
        node.added.push(child);
      }
      node = child;
    }
    return node;
  }

  /**
   * Counts a node's own lock anew.
   *
   * @param {TreeNode} node
   */
  #count(node) {
    const { own, lock } = node;
    const passes = lock !== null && this.#filter(lock);
    const isUsed = passes && node.freedAt === 0;
    const kind = isUsed ? stateOf(lock).kind : 'free';
    const rows = (passes ? 1 : 0) - own.rows;
    const used = (isUsed ? 1 : 0) - own.used;
    const waiting = (isUsed ? lock.waiterCount : 0) - own.waiting;
    const breaking = (kind === 'breaking' ? 1 : 0) - own.breaking;
    const closed = (kind === 'closed' ? 1 : 0) - own.closed;
    node.version += 1;
    this.#hasChanged = true;
    if (rows === 0 && used === 0 && waiting === 0 && breaking === 0 && closed === 0) return;
    add(own, rows, used, waiting, breaking, closed);
    if (rows !== 0) this.#isDirty = true;
    for (let at = /** @type {TreeNode | null} */ (node); at !== null; at = at.parent) {
      add(at.all, rows, used, waiting, breaking, closed);
      at.version += 1;
    }
  }

  /** @param {number} now */
  #sweep(now) {
    let swept = 0;
    for (const node of this.#freed) {
      // Ordered by time, except for those that were taken again and freed again; these wait for their first place.
      if (node.freedAt > 0 && now - node.freedAt < LINGER_MS) break;
      swept += 1;
      if (node.freedAt === 0 || node.lock === null) continue;
      node.lock = null;
      node.freedAt = 0;
      this.#count(node);
      this.#prune(node);
    }
    if (swept > 0) this.#freed.splice(0, swept);
  }

  /** @param {TreeNode} node */
  #prune(node) {
    let at = node;
    while (at.parent !== null && at.lock === null && at.children.size === 0) {
      at.parent.children.delete(at.segment);
      at.parent.gone.add(at);
      at = at.parent;
    }
  }

  /** @param {TreeNode} node */
  #visit(node) {
    sort(node);
    let siblings = 0;
    for (const child of node.sorted) {
      if (child.all.rows === 0) continue;
      const isShown = !this.isFlat || child.own.rows > 0;
      if (isShown) {
        child.index = this.rows.length;
        this.rows.push(child);
        child.position = siblings += 1;
      }
      if (child.isFolder && (this.isFlat || this.isExpanded(child))) this.#visit(child);
    }
    if (this.isFlat) return;
    for (const child of node.sorted) child.siblings = siblings;
  }
}

/**
 * Brings a node's sorted children up to date.
 *
 * @param {TreeNode} node
 */
function sort(node) {
  const { gone } = node;
  if (gone.size > 0) {
    if (node.added.length > 0) node.added = node.added.filter((child) => !gone.has(child));
    if (gone.size > FEW) node.sorted = node.sorted.filter((child) => !gone.has(child));
    else for (const child of gone) removeFrom(node.sorted, child);
    gone.clear();
  }
  if (node.added.length > FEW) {
    node.sorted = node.sorted.concat(node.added).sort(order);
  } else {
    for (const child of node.added) node.sorted.splice(placeOf(node.sorted, child), 0, child);
  }
  node.added = [];
}

/**
 * @param {TreeNode[]} sorted
 * @param {TreeNode} child
 */
function removeFrom(sorted, child) {
  const at = placeOf(sorted, child);
  if (sorted[at] === child) sorted.splice(at, 1);
}

/**
 * @param {TreeNode[]} sorted
 * @param {TreeNode} child
 */
function placeOf(sorted, child) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (order(sorted[middle], child) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * @param {TreeNode} a
 * @param {TreeNode} b
 */
function order(a, b) {
  if (a.key !== b.key) return a.key < b.key ? -1 : 1;
  // `007` and `7` have the same key.
  return a.segment < b.segment ? -1 : a.segment > b.segment ? 1 : 0;
}

/**
 * @param {Sums} sums
 * @param {number} rows
 * @param {number} used
 * @param {number} waiting
 * @param {number} breaking
 * @param {number} closed
 */
function add(sums, rows, used, waiting, breaking, closed) {
  sums.rows += rows;
  sums.used += used;
  sums.waiting += waiting;
  sums.breaking += breaking;
  sums.closed += closed;
}
