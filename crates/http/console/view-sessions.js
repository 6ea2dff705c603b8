// @ts-check
// The live sessions, in pages, and what each identity has of them.

import { asProblem, get, isAbort } from './api.js';
import { el, fill, foreign, setText, visible } from './dom.js';
import { clock, count, counted, duration, exactly, setting } from './format.js';
import { viewHref } from './names.js';
import { problemBox } from './problem-box.js';
import { refresh } from './refresh.js';
import { replaceRoute } from './router.js';
import { sorted, valueBy } from './sort.js';
import { VirtualList } from './virtual-list.js';

/**
 * @typedef {object} Session
 * @property {number} session
 * @property {string} label
 * @property {string} identity
 * @property {number} ttl_ms
 * @property {number} lock_delay_ms
 * @property {number} linger_ms
 * @property {number} requests
 * @property {boolean} attached
 * @property {number} left_ms
 */

const PAGE_SIZE = 1_000;
/** With less than this part of its ttl left, a session's client may be gone: clients renew earlier. */
export const LOW = 1 / 3;
/** Pages that are read again by themselves. With more, the button does it. */
const PAGES_LIVE = 2;
const REFRESH_MS = 5_000;
/** With so many identities their table is open at first. */
const IDENTITIES_OPEN = 6;
/** Identities in the summary. */
const IDENTITIES_MAX = 100;

/** @type {import('./sort.js').Column[]} */
const COLUMNS = [
  { text: 'Session', className: 's-id num', sort: 'session', first: 'own' },
  { text: 'Label', className: 's-label', sort: 'label', first: 'up' },
  { text: 'Identity', className: 's-identity', sort: 'identity', first: 'up' },
  { text: 'Left of its ttl', className: 's-left', sort: 'left', first: 'up' },
  { text: 'Requests', className: 's-requests num', sort: 'requests', first: 'down' },
  { text: 'Client', className: 's-attached', sort: 'client', first: 'up' },
  { text: 'Lock-delay', className: 's-delay num', sort: 'delay', first: 'down' },
  { text: 'Linger', className: 's-linger num', sort: 'linger', first: 'down' },
];
/** @type {Record<string, (session: Session) => number | string>} */
const VALUES = {
  session: (it) => it.session,
  label: (it) => it.label.toLowerCase(),
  identity: (it) => it.identity.toLowerCase(),
  left: (it) => it.left_ms,
  requests: (it) => it.requests,
  client: (it) => (it.attached ? 'attached' : 'not attached'),
  delay: (it) => it.lock_delay_ms,
  linger: (it) => it.linger_ms,
};

export function sessionsTitle() {
  return 'Sessions';
}

/**
 * @param {import('./router.js').Route} route
 * @param {HTMLElement} root
 * @param {AbortSignal} signal
 */
export function mountSessions(route, root, signal) {
  /** @type {Session[]} */
  let sessions = [];
  let nextAfter = /** @type {number | undefined} */ (undefined);
  let pages = 1;
  let text = '';
  let sort = route.parameters.get('sort') ?? '';
  let hasDrawn = false;

  const failed = el('div');
  const summary = el('p', { class: 'summary' });
  const search = el('input', { type: 'search', id: 'search', placeholder: 'Search sessions ( / )', 'aria-label': 'Search sessions by label, identity or number', autocomplete: 'off', spellcheck: 'false' });
  const more = el('button', { type: 'button', hidden: true, onclick: () => void loadMore() }, 'Load more');
  const reload = el('button', { type: 'button', onclick: () => again() }, 'Refresh');
  const identities = el('details', { class: 'identities' });
  const list = new VirtualList({ label: 'Sessions', role: 'grid', layout: 'cols-sessions', columns: COLUMNS, createRow, open, onSort }, signal);
  const empty = el('div', { class: 'empty', hidden: true }, el('p', {}, 'No live session.'));
  root.classList.add('full');
  signal.addEventListener('abort', () => root.classList.remove('full'));
  fill(root, el('h1', { class: 'sr' }, 'Sessions'), el('div', { class: 'tools', role: 'search' }, search, reload, more), failed, summary, identities, el('div', { class: 'list-frame' }, list.element, empty));
  search.addEventListener('input', () => {
    text = search.value.toLowerCase();
    draw();
  });
  const again = refresh(REFRESH_MS, signal, read, show, (problem) => {
    fill(failed, problemBox('The sessions can’t be read', problem, { retry: () => again(), hint: problem.status === 403 ? 'The list of sessions needs permission to read all names.' : '' }));
  });

  /** @param {AbortSignal} inner */
  async function read(inner) {
    if (pages > PAGES_LIVE && sessions.length > 0 && !reload.dataset.pressed) return null;
    delete reload.dataset.pressed;
    /** @type {Session[]} */
    const found = [];
    let after = 0;
    for (let page = 0; page < pages; page += 1) {
      const json = await get(`v1/sessions?page_size=${PAGE_SIZE}&after=${after}`, inner);
      found.push(...json.sessions);
      nextAfter = json.next_after;
      if (nextAfter === undefined) break;
      after = nextAfter;
    }
    return found;
  }
  reload.addEventListener('click', () => (reload.dataset.pressed = '1'), { capture: true });

  /** @param {Session[] | null} found */
  function show(found) {
    if (found === null) return;
    fill(failed);
    sessions = found;
    draw();
  }

  async function loadMore() {
    if (nextAfter === undefined) return;
    more.disabled = true;
    try {
      const json = await get(`v1/sessions?page_size=${PAGE_SIZE}&after=${nextAfter}`, signal);
      nextAfter = json.next_after;
      sessions = sessions.concat(json.sessions);
      pages += 1;
      draw();
    } catch (error) {
      if (!isAbort(error)) fill(failed, problemBox('The next sessions can’t be read', asProblem(error)));
    }
    more.disabled = false;
  }

  function draw() {
    const has = (/** @type {string} */ it) => it.toLowerCase().includes(text);
    const found = text === '' ? sessions : sessions.filter((it) => has(it.label) || has(it.identity) || String(it.session) === text);
    // An order of some only would look like that of all.
    const isWhole = nextAfter === undefined;
    const valueOf = valueBy(VALUES, sort);
    list.showSort(isWhole ? sort : '', isWhole ? '' : 'Load all sessions to sort them');
    list.setItems(isWhole && valueOf !== undefined ? sorted(found, sort, valueOf) : found);
    more.hidden = nextAfter === undefined;
    const what = text === '' ? counted(found.length, 'session') : `${count(found.length)} of ${counted(sessions.length, 'session')}`;
    const rest = isWhole ? '' : '; there are more';
    const manual = pages > PAGES_LIVE ? ', not refreshed by itself' : '';
    setText(summary, `${what}${rest} · as of ${clock(Date.now())}${manual}`);
    empty.hidden = sessions.length > 0;
    drawIdentities();
  }

  function drawIdentities() {
    const sums = sumsOf(sessions);
    if (!hasDrawn) identities.open = sums.length > 1 && sums.length <= IDENTITIES_OPEN;
    hasDrawn = true;
    const rows = sums.slice(0, IDENTITIES_MAX).map((sum) =>
      el('tr', {}, el('td', {}, sum.identity === '' ? el('span', { class: 'dim' }, 'anonymous') : foreign(sum.identity)), el('td', { class: 'num' }, count(sum.sessions)), el('td', { class: 'num' }, count(sum.requests))),
    );
    const head = ['Identity', 'Sessions', 'Requests'].map((label, index) => el('th', { scope: 'col', class: index > 0 ? 'num' : '' }, label));
    const whole = nextAfter === undefined ? '' : ' of the sessions loaded so far';
    const left = sums.length > IDENTITIES_MAX ? el('p', { class: 'dim' }, `${count(sums.length - IDENTITIES_MAX)} more identities have fewer requests.`) : null;
    fill(identities, el('summary', {}, `By identity${whole}: ${counted(sums.length, 'identity', 'identities')}`), el('div', { class: 'table-frame compact' }, el('table', { class: 'plain-table' }, el('thead', {}, el('tr', {}, head)), el('tbody', {}, rows))), left);
  }

  /** @param {string} chosen */
  function onSort(chosen) {
    sort = chosen;
    replaceRoute(viewHref('sessions', { sort }));
    draw();
  }

  /** @param {Session} session */
  function open(session) {
    location.hash = `#/session/${session.session}`;
  }
}

/**
 * Sessions and requests of each identity, most requests first.
 *
 * @param {Session[]} sessions
 */
function sumsOf(sessions) {
  /** @type {Map<string, { identity: string, sessions: number, requests: number }>} */
  const sums = new Map();
  for (const { identity, requests } of sessions) {
    const sum = sums.get(identity) ?? { identity, sessions: 0, requests: 0 };
    sum.sessions += 1;
    sum.requests += requests;
    sums.set(identity, sum);
  }
  return [...sums.values()].sort((a, b) => b.requests - a.requests || b.sessions - a.sessions);
}

/** @returns {import('./virtual-list.js').Row<Session>} */
function createRow() {
  const link = el('a', { tabindex: -1 });
  const label = el('bdi', { dir: 'auto' });
  const identity = el('bdi', { dir: 'auto' });
  const meter = leftMeter();
  const cells = [link, label, identity, meter.element, el('span'), el('span'), el('span'), el('span')];
  const root = el('div', {}, cells.map((cell, index) => el('span', { role: 'gridcell', class: COLUMNS[index].className }, cell)));
  const [, , , , requests, attached, delay, linger] = cells;
  /** @type {Session | null} */
  let shown = null;
  return {
    root,
    update(session) {
      if (shown === session) return;
      shown = session;
      setText(link, String(session.session));
      link.href = `#/session/${session.session}`;
      setText(label, visible(session.label) || 'no label');
      label.title = visible(session.label);
      label.classList.toggle('dim', session.label === '');
      setText(identity, visible(session.identity) || 'anonymous');
      identity.title = visible(session.identity);
      identity.classList.toggle('dim', session.identity === '');
      meter.update(session.left_ms, session.ttl_ms);
      setText(requests, count(session.requests));
      setText(attached, session.attached ? 'attached' : 'not attached');
      attached.className = session.attached ? '' : 'dim';
      setText(delay, setting(session.lock_delay_ms));
      setText(linger, setting(session.linger_ms));
    },
  };
}

/** A bar for the rest of a session's ttl, with the numbers beside it. */
export function leftMeter() {
  const bar = el('span', { class: 'bar' });
  const text = el('span', { class: 'num' });
  const element = el('span', { class: 'meter' }, el('span', { class: 'track', 'aria-hidden': 'true' }, bar), text);
  return {
    element,
    /**
     * @param {number} left milliseconds
     * @param {number} ttl milliseconds
     */
    update(left, ttl) {
      const part = ttl > 0 ? Math.max(0, Math.min(1, left / ttl)) : 0;
      bar.style.transform = `scaleX(${part})`;
      const isLow = part < LOW;
      element.classList.toggle('low', isLow);
      setText(text, `${isLow ? '! ' : ''}${duration(left)} of ${setting(ttl)}`);
      element.title = `${exactly(left)} of ${exactly(ttl)}${isLow ? '; its client has not renewed it for long' : ''}`;
    },
  };
}
