// @ts-check
// The view of all locks, as a tree or flat, live.

import { openBreakAll } from './break-all-dialog.js';
import { el, fill, setText, visible } from './dom.js';
import { count, counted } from './format.js';
import { lockHref, viewHref } from './names.js';
import { stateOf } from './lock-model.js';
import { COLUMNS, createLockRow } from './lock-row.js';
import { store } from './lock-store.js';
import { Expansion, LockTree } from './lock-tree.js';
import { replaceRoute } from './router.js';
import { VirtualList } from './virtual-list.js';
import { showWatchNotice } from './watch-notice.js';

/** @typedef {import('./lock-tree.js').TreeNode} TreeNode */
/** @typedef {import('./lock-model.js').Lock} Lock */
/** @typedef {{ text: string, match: string, show: string, flat: string, under: string, sort: string }} Choice */

/** With at most this many locks all folders are expanded at first. */
const EXPANDED_MAX = 200;
/** The time after a key in the search until it is applied, in milliseconds. */
const TYPING_MS = 120;

/** The least time between two drawings because of changes, in milliseconds: nobody reads faster. */
const DRAW_MS = 100;
/** That time is at least so many times the last drawing's own: with 200,000 rows one takes some 20 ms. */
const DRAW_PAUSE = 12;

/** Kept over navigation: who comes back from a lock finds the tree as it was left. */
let last = /** @type {Choice} */ ({ text: '', match: '', show: '', flat: '', under: '', sort: '' });
const left = { expansion: new Expansion(), isExpansionChosen: false, scrollTop: 0, active: '' };

/** @param {import('./router.js').Route} route */
export function locksTitle(route) {
  const prefix = route.parameters.get('prefix');
  return prefix ? `Locks: ${prefix}` : 'Locks';
}

/**
 * @param {import('./router.js').Route} route
 * @param {HTMLElement} root
 * @param {AbortSignal} signal
 */
export function mountLocks(route, root, signal) {
  const tree = new LockTree(left.expansion);
  let choice = choiceOf(route);
  let frame = 0;
  let later = 0;
  let drawnAt = 0;
  let pause = DRAW_MS;
  let hasChanged = true;

  const search = el('input', { type: 'search', id: 'search', placeholder: 'Search locks ( / )', 'aria-label': 'Search locks', autocomplete: 'off', spellcheck: 'false', 'aria-keyshortcuts': '/' });
  const match = select('Search in', [['', 'Name begins with'], ['contains', 'Name contains'], ['holder', 'Holder']]);
  const show = select('Show', [['', 'All locks'], ['queued', 'With a queue'], ['breaking', 'Being broken'], ['closed', 'Closed'], ['permits', 'With permits']]);
  const flat = el('button', { type: 'button', 'aria-pressed': 'false', onclick: () => choose({ flat: isFlat() ? '' : '1', sort: '' }) }, 'Flat list');
  const expand = el('button', { type: 'button', title: 'Expand all folders', onclick: () => expandAll(true) }, 'Expand');
  const collapse = el('button', { type: 'button', title: 'Collapse all folders', onclick: () => expandAll(false) }, 'Collapse');
  const scope = el('button', { type: 'button', 'aria-expanded': 'false', onclick: () => showScope(scopeForm.hidden) });
  const scopeInput = el('input', { type: 'text', id: 'scope', autocomplete: 'off', spellcheck: 'false', 'aria-describedby': 'scope-help' });
  const scopeForm = el('form', { class: 'scope', hidden: true }, el('label', { for: 'scope' }, 'Watch only this name and those below it'), scopeInput, el('button', {}, 'Watch'), el('span', { id: 'scope-help', class: 'hint' }, 'Empty: all names. Less is sent, and permission to read this name is enough.'));
  const summary = el('p', { class: 'summary' });
  const notice = el('div', { class: 'notices' });
  const empty = el('div', { class: 'empty', hidden: true });

  const list = new VirtualList(
    { label: 'Locks', role: 'treegrid', layout: 'cols-locks', columns: COLUMNS, createRow: () => createLockRow(tree, breakAll), open, key, onSort: (sort) => choose({ sort, flat: '1' }) },
    signal,
  );
  const tools = el('div', { class: 'tools', role: 'search' }, search, match, show, el('span', { class: 'group' }, flat, expand, collapse), scope);
  root.classList.add('full');
  signal.addEventListener('abort', () => root.classList.remove('full'));
  fill(root, el('h1', { class: 'sr' }, 'Locks'), tools, scopeForm, notice, summary, el('div', { class: 'list-frame' }, list.element, empty));

  let typing = 0;
  search.addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(() => choose({ text: search.value }), TYPING_MS);
  });
  search.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => {
    if (event.key === 'ArrowDown' || event.key === 'Enter') {
      event.preventDefault();
      clearTimeout(typing);
      choose({ text: search.value });
      draw();
      list.element.focus();
      list.activate(0);
    } else if (event.key === 'Escape' && search.value !== '') {
      event.preventDefault();
      choose({ text: '' });
    }
  });
  scopeForm.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== 'Escape') return;
    showScope(false);
    scope.focus();
  });
  match.addEventListener('change', () => choose({ match: match.value }));
  show.addEventListener('change', () => choose({ show: show.value }));
  scopeForm.addEventListener('submit', (/** @type {Event} */ event) => {
    event.preventDefault();
    choose({ under: scopeInput.value.replace(/^\/+|\/+$/g, '') });
    showScope(false);
  });
  list.body.addEventListener('click', (/** @type {MouseEvent} */ event) => {
    const node = list.itemAt(event.target);
    const target = event.target instanceof Element ? event.target : null;
    if (node === null || target === null || !node.isFolder || tree.isFlat || target.closest('button') !== null) return;
    // The link of a name that is only a folder opens the folder. With a modifier key it stays a link.
    const isLink = target.closest('a') !== null;
    if (isLink && (node.own.rows > 0 || event.ctrlKey || event.metaKey || event.shiftKey)) return;
    event.preventDefault();
    toggle(node);
  });
  store.onLock((name, lock) => {
    tree.set(name, lock);
    scheduleLater();
  }, signal);
  store.onStatus(() => {
    showStatus();
    schedule();
  }, signal);
  for (const [name, lock] of store.locks) tree.set(name, lock);
  const ticker = setInterval(() => {
    hasChanged = true;
    // Frames are not drawn for a hidden page; the locks that became free have to go nevertheless.
    if (document.hidden) tree.update(Date.now());
    schedule();
  }, 1_000);
  signal.addEventListener('abort', () => {
    clearInterval(ticker);
    clearTimeout(typing);
    clearTimeout(later);
    cancelAnimationFrame(frame);
    left.active = list.activeItem?.name ?? '';
  });
  list.element.addEventListener('scroll', () => (left.scrollTop = list.element.scrollTop), { passive: true });

  const { scrollTop, active } = left;
  apply();
  showStatus();
  draw();
  const node = tree.find(active);
  if (node !== null && node.index >= 0) list.activate(node.index);
  list.element.scrollTop = scrollTop;
  return {
    /** @param {import('./router.js').Route} next */
    update(next) {
      choice = choiceOf(next);
      apply();
    },
  };

  /** @param {Partial<Choice>} part */
  function choose(part) {
    choice = { ...choice, ...part };
    replaceRoute(hrefOf(choice));
    apply();
  }

  /** Makes the page what `choice` says. */
  function apply() {
    last = choice;
    if (search.value !== choice.text) search.value = choice.text;
    match.value = choice.match;
    show.value = choice.show;
    flat.setAttribute('aria-pressed', String(isFlat()));
    expand.disabled = collapse.disabled = isFlat();
    setText(scope, choice.under === '' ? 'Scope: all names' : `Scope: ${visible(choice.under)}`);
    scope.title = 'Which names are watched';
    scopeInput.value = choice.under;
    store.watch(choice.under);
    tree.setFlat(isFlat());
    tree.setOpened(choice.under);
    tree.setFilter(filterOf(choice));
    schedule();
  }

  /** A sort is one of all names: it needs the flat list. */
  function isFlat() {
    return choice.flat !== '' || choice.sort !== '';
  }

  /** @param {boolean} isShown */
  function showScope(isShown) {
    scopeForm.hidden = !isShown;
    scope.setAttribute('aria-expanded', String(isShown));
    if (isShown) scopeInput.focus();
  }

  /** Draws at the next frame: after what the user did. */
  function schedule() {
    hasChanged = true;
    clearTimeout(later);
    later = 0;
    if (frame === 0) frame = requestAnimationFrame(draw);
  }

  /** Draws soon: after changes of locks, which may be hundreds per second. */
  function scheduleLater() {
    hasChanged = true;
    if (frame === 0 && later === 0) later = setTimeout(schedule, Math.max(0, drawnAt + pause - performance.now()));
  }

  function draw() {
    frame = 0;
    drawnAt = performance.now();
    if (!hasChanged) return;
    hasChanged = false;
    if (store.hasSynced && !left.isExpansionChosen) {
      left.isExpansionChosen = true;
      if (store.locks.size <= EXPANDED_MAX) tree.expandAll(true);
    }
    // An order of some only would look like that of all.
    const refusal = store.isTruncated ? 'There are more locks than this page keeps: choose a scope to sort them' : store.hasSynced ? '' : 'The locks are still being loaded';
    const sort = refusal === '' ? choice.sort : '';
    tree.setSort(sort);
    list.showSort(sort, refusal);
    tree.update(Date.now());
    if (list.items !== tree.rows) list.setItems(tree.rows, (node) => node.index);
    else list.render();
    const { used, waiting, breaking, closed } = tree.root.all;
    const parts = [counted(used, 'lock')];
    if (used !== store.locks.size) parts[0] += ` of ${count(store.locks.size)}`;
    parts.push(`${count(waiting)} waiting`);
    if (breaking > 0) parts.push(`${count(breaking)} being broken`);
    if (closed > 0) parts.push(`${count(closed)} closed`);
    const isLoading = store.status.state === 'connecting' || store.status.state === 'loading';
    setText(summary, store.hasSynced ? parts.join(' · ') : isLoading ? `${parts[0]} so far; the rest is on its way` : 'No locks have been received.');
    empty.hidden = tree.rows.length > 0 || !store.hasSynced;
    if (!empty.hidden) showEmpty();
    pause = Math.max(DRAW_MS, DRAW_PAUSE * (performance.now() - drawnAt));
  }

  function showEmpty() {
    const isAll = choice.text === '' && choice.show === '';
    const where = choice.under === '' ? '' : ` at or below ${visible(choice.under)}`;
    const text = isAll ? `No lock is in use${where}.` : 'No lock in use matches.';
    const clear = el('button', { type: 'button', onclick: () => choose({ text: '', show: '' }) }, 'Show all locks');
    const open = choice.text !== '' && choice.match === '' && el('a', { href: lockHref(choice.text) }, 'Open the page of this name');
    if (empty.firstChild?.textContent !== text) fill(empty, el('p', {}, text), isAll ? null : clear, open);
  }

  function showStatus() {
    const { state, problem } = store.status;
    showWatchNotice(notice);
    if (state === 'refused' && problem?.status === 403) showScope(true);
    list.element.classList.toggle('stale', state !== 'live' && state !== 'loading');
  }

  /** @param {boolean} isExpanded */
  function expandAll(isExpanded) {
    tree.expandAll(isExpanded);
    schedule();
  }

  /** @param {TreeNode} node */
  function toggle(node) {
    tree.toggle(node);
    schedule();
  }

  /** @param {TreeNode} folder */
  function breakAll(folder) {
    openBreakAll(folder, choice.text !== '' || choice.show !== '', signal);
  }

  /** @param {TreeNode} node */
  function open(node) {
    if (node.own.rows === 0) toggle(node);
    else location.hash = lockHref(node.name);
  }

  /**
   * @param {KeyboardEvent} event
   * @param {TreeNode} node
   */
  function key(event, node) {
    if (tree.isFlat) return false;
    const isExpanded = node.isFolder && tree.isExpanded(node);
    if (event.key === 'ArrowRight') {
      if (node.isFolder && !isExpanded) toggle(node);
      else if (isExpanded) list.activate(node.index + 1);
      return true;
    }
    if (event.key === 'ArrowLeft') {
      if (isExpanded) toggle(node);
      else if (node.parent !== null && node.parent.index >= 0) list.activate(node.parent.index);
      return true;
    }
    if (event.key === ' ' && node.isFolder) {
      toggle(node);
      return true;
    }
    if (event.key === 'Delete' && node.isFolder) {
      breakAll(node);
      return true;
    }
    return false;
  }
}

/** The view as it was left. */
export function lastLocksHref() {
  return hrefOf(last);
}

/** @param {Choice} choice */
function hrefOf({ text, match, show, flat, under, sort }) {
  return viewHref('locks', { prefix: text, match, show, flat, under, sort });
}

/**
 * @param {import('./router.js').Route} route
 * @returns {Choice}
 */
function choiceOf({ parameters }) {
  const get = (/** @type {string} */ key) => parameters.get(key) ?? '';
  return { text: get('prefix'), match: get('match'), show: get('show'), flat: get('flat'), under: get('under'), sort: get('sort') };
}

/**
 * @param {Choice} choice
 * @returns {((lock: Lock) => boolean) | null}
 */
function filterOf({ text, match, show }) {
  if (text === '' && show === '') return null;
  const lower = text.toLowerCase();
  const has = (/** @type {string} */ it) => it.toLowerCase().includes(lower);
  /** @type {(lock: Lock) => boolean} */
  const fits =
    match === 'holder'
      ? (lock) => lock.holds.some((hold) => has(hold.label) || has(hold.identity) || String(hold.session) === text)
      : match === 'contains'
        ? (lock) => has(lock.name)
        : (lock) => lock.name.startsWith(text);
  return (lock) => (text === '' || fits(lock)) && isShown(lock, show);
}

/**
 * @param {Lock} lock
 * @param {string} show
 */
function isShown(lock, show) {
  if (show === 'queued') return lock.waiterCount > 0;
  if (show === 'permits') return lock.permits !== undefined;
  return show === '' || stateOf(lock).kind === show;
}

/**
 * @param {string} label
 * @param {[string, string][]} options
 */
function select(label, options) {
  return el('select', { 'aria-label': label }, options.map(([value, text]) => el('option', { value }, text)));
}
