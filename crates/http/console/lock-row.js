// @ts-check
// A row of the view of locks: a folder, a lock, or both.

import { el, fill, nameParts, setText, visible } from './dom.js';
import { count, counted, dateTime, duration, exactly } from './format.js';
import { lockHref } from './names.js';
import { stateOf, whoOf } from './lock-model.js';

/** @typedef {import('./lock-tree.js').TreeNode} TreeNode */
/** @typedef {import('./lock-model.js').Lock} Lock */

/** @type {import('./sort.js').Column[]} */
export const COLUMNS = [
  { text: 'Name', className: 'c-name', sort: 'name', first: 'own' },
  { text: 'State', className: 'c-state', sort: 'state', first: 'up' },
  { text: 'Holder', className: 'c-holder', sort: 'holder', first: 'up' },
  { text: 'Token', className: 'c-token', sort: 'token', first: 'down' },
  { text: 'Held for', className: 'c-since', sort: 'held', first: 'down' },
  { text: 'Waiting', className: 'c-queue', sort: 'waiting', first: 'down' },
];

/** Indents are classes, up to this depth; deeper names stand at the same place. */
const DEPTH_MAX = 12;

/**
 * Makes rows.
 *
 * @param {import('./lock-tree.js').LockTree} tree
 * @param {(folder: TreeNode) => void} breakAll
 * @returns {import('./virtual-list.js').Row<TreeNode>}
 */
export function createLockRow(tree, breakAll) {
  const twisty = el('span', { class: 'twisty', 'aria-hidden': 'true' });
  const name = el('bdi', { dir: 'auto' });
  // The list has the focus; Tab goes past the rows.
  const link = el('a', { class: 'name', tabindex: -1 }, name);
  const sums = el('span', { class: 'sums' });
  // It is seen where the pointer or the keyboard is.
  const end = el('button', { type: 'button', class: 'danger break-all', tabindex: -1, 'aria-keyshortcuts': 'Delete', onclick: () => shown.node !== null && breakAll(shown.node) }, 'Break all below…');
  const state = el('span', { class: 'state' });
  const holder = el('bdi', { class: 'who', dir: 'auto' });
  const identity = el('bdi', { class: 'more', dir: 'auto' });
  const more = el('span', { class: 'more' });
  const purpose = el('bdi', { class: 'purpose', dir: 'auto' });
  const cell = (/** @type {string} */ className, /** @type {any[]} */ ...children) =>
    el('span', { role: 'gridcell', class: className }, children);
  const token = cell('c-token num');
  const since = cell('c-since num');
  const queue = cell('c-queue num');
  const root = el(
    'div',
    {},
    cell('c-name', twisty, link, sums, end),
    cell('c-state', state),
    cell('c-holder', holder, identity, more, purpose),
    token,
    since,
    queue,
  );

  /** What is shown now, so that a row that has not changed costs nothing. */
  let shown = { node: /** @type {TreeNode | null} */ (null), version: -1, second: 0, place: '', isExpanded: false };

  /** @param {TreeNode} node */
  function place(node) {
    const { isFlat } = tree;
    root.dataset.depth = String(isFlat ? 0 : Math.min(node.depth - 1, DEPTH_MAX));
    root.setAttribute('aria-level', String(isFlat ? 1 : node.depth));
    root.setAttribute('aria-posinset', String(isFlat ? node.index + 1 : node.position));
    root.setAttribute('aria-setsize', String(isFlat ? tree.rows.length : node.siblings));
    const text = visible(isFlat ? node.name : node.segment);
    if (name.dataset.text !== text) {
      name.dataset.text = text;
      fill(name, isFlat ? nameParts(text) : text);
      link.title = visible(node.name);
    }
  }

  /**
   * @param {TreeNode} node
   * @param {boolean} isExpanded
   */
  function folder(node, isExpanded) {
    const isFolder = node.isFolder && !tree.isFlat;
    root.classList.toggle('folder', isFolder);
    root.classList.toggle('expanded', isExpanded);
    if (isFolder) root.setAttribute('aria-expanded', String(isExpanded));
    else root.removeAttribute('aria-expanded');
    const { all, own } = node;
    const parts = [counted(all.used - own.used, 'lock')];
    if (node.lock !== null) {
      // The columns are taken by the lock of the same name.
      if (all.waiting > own.waiting) parts.push(`${count(all.waiting - own.waiting)} waiting`);
      if (all.breaking > own.breaking) parts.push(`${count(all.breaking - own.breaking)} being broken`);
      if (all.closed > own.closed) parts.push(`${count(all.closed - own.closed)} closed`);
    }
    setText(sums, isFolder ? parts.join(' · ') : '');
    end.hidden = !isFolder;
  }

  /**
   * What needs an eye below a folder.
   *
   * @param {TreeNode} node
   */
  function showSums({ all }) {
    const kind = all.breaking > 0 ? 'breaking' : all.closed > 0 ? 'closed' : '';
    const className = `state ${kind}`;
    if (state.className !== className) state.className = className;
    setText(state, all.breaking > 0 ? `${count(all.breaking)} being broken` : all.closed > 0 ? `${count(all.closed)} closed` : '');
    setText(queue, all.waiting === 0 ? '' : count(all.waiting));
  }

  /**
   * @param {Lock | null} lock
   * @param {boolean} isFree
   */
  function content(lock, isFree) {
    const hold = isFree ? undefined : lock?.holds[0];
    root.classList.toggle('free', isFree);
    if (lock !== null) {
      const { kind, text } = isFree ? { kind: 'free', text: 'free' } : stateOf(lock);
      const className = `state ${kind}`;
      if (state.className !== className) state.className = className;
      const left = hold !== undefined && kind === 'closed' ? `, ${duration(hold.closedUntil - Date.now())} left` : '';
      setText(state, text + left);
    }
    setText(holder, hold === undefined ? '' : visible(whoOf(hold)));
    holder.title = hold === undefined ? '' : describe(hold);
    setText(identity, hold === undefined || hold.label === '' ? '' : visible(hold.identity));
    const extra = [];
    if (lock !== null && hold !== undefined) {
      if (lock.holdCount > 1) extra.push(`and ${count(lock.holdCount - 1)} more`);
      if (hold.subtree) extra.push('subtree');
      if (hold.slot !== undefined && lock.holdCount === 1) extra.push(`slot ${hold.slot}`);
    }
    setText(more, extra.join(', '));
    const meta = visible(hold?.meta ?? '');
    setText(purpose, meta);
    purpose.title = meta;
    setText(token, hold === undefined ? '' : String(hold.token));
    const held = hold === undefined || hold.state === 'closed' ? NaN : Date.now() - hold.since;
    setText(since, Number.isNaN(held) ? '' : duration(held));
    since.title = hold === undefined || Number.isNaN(held) ? '' : `since ${dateTime(hold.grantedAt)}\n${exactly(held)}`;
    const waits = isFree ? 0 : (lock?.waiterCount ?? 0);
    setText(queue, waits === 0 ? '' : count(waits));
  }

  return {
    root,
    update(node) {
      const isExpanded = node.isFolder && !tree.isFlat && tree.isExpanded(node);
      const now = `${node.index} ${node.position} ${node.siblings} ${tree.isFlat}`;
      const second = Math.floor(Date.now() / 1_000);
      const isOther = shown.node !== node;
      if (!isOther && shown.version === node.version && shown.second === second && shown.place === now && shown.isExpanded === isExpanded) return;
      if (isOther || shown.place !== now) place(node);
      if (isOther) link.href = lockHref(node.name);
      if (isOther || shown.version !== node.version || shown.isExpanded !== isExpanded || shown.place !== now) {
        folder(node, isExpanded);
        root.classList.toggle('locked', node.lock !== null);
      }
      const lock = node.own.rows > 0 ? node.lock : null;
      content(lock, node.freedAt > 0);
      if (lock === null) showSums(node);
      shown = { node, version: node.version, second, place: now, isExpanded };
    },
  };
}

/** @param {import('./lock-model.js').Hold} hold */
function describe(hold) {
  const parts = [`label: ${visible(hold.label) || 'none'}`, `identity: ${visible(hold.identity) || 'anonymous'}`];
  parts.push(hold.session > 0 ? `session ${hold.session}` : 'the holder is gone', hold.mode);
  return parts.join('\n');
}
