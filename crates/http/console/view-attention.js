// @ts-check
// The first page: what somebody should look at. A few lines of each kind, from what the page knows already.

import { get } from './api.js';
import { attentionTables } from './attention-tables.js';
import { el, fill, panel, setText } from './dom.js';
import { count, counted } from './format.js';
import { extremesOf } from './lock-extremes.js';
import { store } from './lock-store.js';
import { viewHref } from './names.js';
import { findingsList, findingsOf } from './node-findings.js';
import { watchNodes } from './node-watch.js';
import { problemBox } from './problem-box.js';
import { refresh } from './refresh.js';
import { showWatchNotice } from './watch-notice.js';
import { LOW } from './view-sessions.js';

/** Lines of each list. */
const LINES = 5;
/** The least time between two passes over all locks, in milliseconds. */
const PASS_MS = 2_000;
/** That time is at least so many times the last pass's own: with 200,000 locks one takes some 50 ms. */
const PASS_PAUSE = 50;
const TICK_MS = 1_000;
const SESSIONS_MS = 5_000;
/** Sessions that are looked at: the first page. */
const SESSIONS_MAX = 1_000;

export function attentionTitle() {
  return 'Attention';
}

/**
 * @param {import('./router.js').Route} _route
 * @param {HTMLElement} root
 * @param {AbortSignal} signal
 */
export function mountAttention(_route, root, signal) {
  const verdict = el('p', { class: 'facts', 'aria-live': 'polite' });
  const verdictState = el('span', { class: 'state big' });
  const verdictText = el('span', { class: 'dim' });
  fill(verdict, verdictState, verdictText);
  const notice = el('div');
  const findings = el('div');
  const sessionsFailed = el('div');
  const { oldest, queued, stopped, sessions } = attentionTables();
  const all = el('p', { class: 'all' });
  const nodesPanel = section('Nodes', el('a', { href: '#/nodes' }, 'All nodes'), findings);
  const stoppedPanel = section('Being broken, or closed', stopped.more, stopped.element);
  const sessionsPanel = section('Sessions about to end', sessions.more, sessions.element);
  fill(
    root,
    el('div', { class: 'page-head' }, el('h1', {}, 'Attention'), verdict),
    notice,
    nodesPanel,
    stoppedPanel,
    sessionsPanel,
    sessionsFailed,
    el('div', { class: 'cards' }, panel('Oldest holds', oldest.more, oldest.element, oldest.none), panel('Longest queues', queued.more, queued.element, queued.none)),
    all,
  );

  let extremes = extremesOf([], LINES);
  /** Whether the last pass has seen all locks. */
  let isKnown = false;
  let hasChanged = true;
  let [passedAt, pause] = [-Infinity, PASS_MS];
  let ending = { found: /** @type {any[]} */ ([]), hasMore: false, isRead: false, hasFailed: false, isDenied: false };

  const { nodes } = watchNodes(signal, show);
  // Without the permission each further call would be a record of the audit trail.
  const reading = new AbortController();
  signal.addEventListener('abort', () => reading.abort());
  const again = refresh(SESSIONS_MS, reading.signal, (inner) => get(`v1/sessions?page_size=${SESSIONS_MAX}`, inner), (page) => {
    const found = page.sessions.filter((/** @type {any} */ it) => !it.attached && it.left_ms < it.ttl_ms * LOW);
    found.sort((/** @type {any} */ a, /** @type {any} */ b) => a.left_ms - b.left_ms);
    ending = { found, hasMore: page.next_after !== undefined, isRead: true, hasFailed: false, isDenied: false };
    fill(sessionsFailed);
    show();
  }, (problem) => {
    ending = { ...ending, isRead: false, hasFailed: true, isDenied: problem.status === 401 || problem.status === 403 };
    if (ending.isDenied) reading.abort();
    else fill(sessionsFailed, problemBox('The sessions can’t be read', problem, { retry: () => again() }));
    show();
  });
  store.onLock(() => (hasChanged = true), signal);
  store.onStatus(() => {
    showWatchNotice(notice);
    hasChanged = true;
    show();
  }, signal);
  const ticker = setInterval(() => document.hidden || show(), TICK_MS);
  signal.addEventListener('abort', () => clearInterval(ticker));
  showWatchNotice(notice);
  show();

  function show() {
    pass();
    showLocks();
    showSessions();
    const found = findingsOf(nodes);
    nodesPanel.hidden = found.length === 0;
    if (findings.dataset.shown !== JSON.stringify(found)) {
      findings.dataset.shown = JSON.stringify(found);
      fill(findings, findingsList(found, '#/nodes'));
    }
    showVerdict(found);
  }

  /** Looks at all locks, unless that was done lately or nothing has changed. */
  function pass() {
    const now = performance.now();
    const isOverdue = store.hasSynced !== isKnown;
    if (!isOverdue && (!hasChanged || now - passedAt < pause)) return;
    hasChanged = false;
    isKnown = store.hasSynced;
    extremes = extremesOf(store.locks.values(), LINES);
    passedAt = performance.now();
    pause = Math.max(PASS_MS, PASS_PAUSE * (passedAt - now));
  }

  function showLocks() {
    const { counts } = extremes;
    oldest.show(extremes.oldest, isKnown ? 'Nobody holds a lock.' : '');
    queued.show(extremes.queued, isKnown ? 'Nobody waits.' : '');
    queued.showMore(counts.queued, LINES, 'queue', viewHref('locks', { show: 'queued', sort: '-waiting' }));
    const lines = [...extremes.breaking, ...extremes.closed].slice(0, LINES);
    stoppedPanel.hidden = lines.length === 0;
    stopped.show(lines, '');
    stopped.showMore(counts.breaking + counts.closed, lines.length, 'lock', viewHref('locks', { show: counts.breaking > 0 ? 'breaking' : 'closed' }));
    const where = store.scope === '' ? '' : ` at and below ${store.scope}`;
    const link = el('a', { href: viewHref('locks') }, isKnown ? `All ${counted(store.locks.size, 'lock')}${where}` : 'All locks');
    if (all.textContent !== link.textContent) fill(all, link);
  }

  function showSessions() {
    const { found, hasMore } = ending;
    sessionsPanel.hidden = found.length === 0;
    sessions.show(found.slice(0, LINES), '');
    sessions.showMore(found.length, LINES, 'session', viewHref('sessions', { sort: 'left' }), hasMore ? `among the first ${count(SESSIONS_MAX)}; there are more` : '');
  }

  /** @param {import('./node-findings.js').Finding[]} found */
  function showVerdict(found) {
    const { breaking, closed } = extremes.counts;
    const things = found.length + breaking + closed + ending.found.length;
    const isBad = found.some((it) => it.level === 'bad');
    const areLocksLost = store.status.state === 'refused' || store.status.state === 'offline';
    const areNodesRead = nodes.own !== null && nodes.members !== null;
    const areNodesLost = nodes.statusProblem !== null || nodes.membersProblem !== null;
    if (things === 0 && ((!isKnown && !areLocksLost) || (!ending.isRead && !ending.hasFailed) || (!areNodesRead && !areNodesLost))) {
      verdictState.className = 'state big waiting';
      setText(verdictState, 'Looking…');
      return;
    }
    // A part that could not be read is not well: it is unknown.
    const unread = [];
    if (!isKnown || areLocksLost) unread.push('the locks');
    if (!ending.isRead) unread.push('the sessions');
    if (!areNodesRead) unread.push('the nodes');
    const isUnread = unread.length > 0;
    verdictState.className = `state big ${things > 0 ? (isBad ? 'breaking' : 'closed') : isUnread ? 'waiting' : 'held'}`;
    setText(verdictState, things > 0 ? `${counted(things, 'thing needs', 'things need')} attention` : isUnread ? 'Not everything could be looked at' : 'Nothing needs attention');
    const answering = nodes.members?.nodes.length ?? 0;
    const well = `${answering === 1 ? 'The node answers' : `All ${answering} nodes answer`}, no hold is being broken or keeps its lock closed, and no session${ending.hasMore ? ` of the first ${count(SESSIONS_MAX)}` : ''} is about to end.`;
    setText(verdictText, isUnread ? `Not known: ${unread.join(', ')}${ending.isDenied ? ' (without the permission)' : ''}.` : things > 0 ? '' : well);
  }
}

/**
 * A block that is hidden until it has something to show.
 *
 * @param {string} heading
 * @param {any} aside
 * @param {HTMLElement} content
 */
function section(heading, aside, content) {
  const element = panel(heading, aside, content);
  element.hidden = true;
  return element;
}
