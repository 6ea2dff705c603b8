// @ts-check
// One session, and its locks as far as the watch shows them.

import { get } from './api.js';
import { el, fill, foreign, nameText, panel, setText } from './dom.js';
import { count, counted, duration, exactly, setting } from './format.js';
import { openEndSession } from './end-session-dialog.js';
import { keyedTable, fillRow } from './hold-table.js';
import { modeText } from './changes.js';
import { store } from './lock-store.js';
import { lockHref } from './names.js';
import { problemBox } from './problem-box.js';
import { refresh } from './refresh.js';
import { leftMeter } from './view-sessions.js';

const REFRESH_MS = 2_000;
/** Locks that are listed at most. */
const LOCKS_SHOWN = 1_000;

/** @param {import('./router.js').Route} route */
export function sessionTitle(route) {
  return `Session ${route.rest}`;
}

/**
 * @param {import('./router.js').Route} route
 * @param {HTMLElement} root
 * @param {AbortSignal} signal
 */
export function mountSession(route, root, signal) {
  const session = Number(route.rest);
  const isNumber = Number.isSafeInteger(session) && session > 0;
  fill(root, el('div', { class: 'page-head' }, el('h1', {}, isNumber ? `Session ${session}` : 'Session')));
  if (!isNumber) {
    root.append(el('p', { class: 'box warn' }, 'The address names no session: it ends with the session’s number. ', el('a', { href: '#/sessions' }, 'All sessions')));
    return;
  }
  const failed = el('div');
  const facts = el('dl', { class: 'facts-list' });
  const meter = leftMeter();
  const note = el('p', { class: 'dim' });
  /** @type {import('./view-sessions.js').Session | null} */
  let live = null;
  const end = el('button', { type: 'button', class: 'danger', hidden: true, onclick: () => live !== null && openEndSession(live, signal, () => again()) }, 'End the session…');
  const table = keyedTable('Locks of the session', ['Lock', 'Part', 'Token', 'Held for'], (/** @type {any} */ item) => item.key, (item, row, columns) => {
    fillRow(row, columns, [item.key, item.part], () => [
      el('a', { href: lockHref(item.name) }, nameText(item.name, 'wrap')),
      item.part,
      el('span', { class: 'num token' }, item.token === 0 ? '' : String(item.token)),
      el('span', { class: 'num', 'data-time': '' }),
    ]);
    const time = row.querySelector('[data-time]');
    if (time instanceof HTMLElement && !Number.isNaN(item.since)) {
      setText(time, duration(Date.now() - item.since));
      time.title = exactly(Date.now() - item.since);
    }
  });
  root.append(failed, facts, el('p', { class: 'actions' }, end), panel('Locks', note, table.element));

  const again = refresh(
    REFRESH_MS,
    signal,
    // The list is ordered by number: the first one after the number before is this one, if it is live.
    (inner) => get(`v1/sessions?page_size=1&after=${session - 1}`, inner),
    (page) => {
      const [found] = page.sessions;
      fill(failed);
      live = found?.session === session ? found : null;
      end.hidden = live === null;
      if (live !== null) showFacts(live);
      else {
        fill(facts);
        fill(failed, el('p', { class: 'box warn' }, 'This session is not live. Either it has ended, and all its requests with it, or its number was never given.'));
      }
      showLocks();
    },
    (problem) => {
      fill(failed, problemBox('The session can’t be read', problem, { retry: () => again() }));
      showLocks();
    },
  );
  store.onStatus(showLocks, signal);
  showLocks();

  /** @param {import('./view-sessions.js').Session} found */
  function showFacts(found) {
    meter.update(found.left_ms, found.ttl_ms);
    const fact = (/** @type {string} */ name, /** @type {any} */ value) => el('div', {}, el('dt', {}, name), el('dd', {}, value));
    fill(facts, [
      fact('Label', found.label === '' ? 'none' : foreign(found.label, 'wrap')),
      fact('Identity', found.identity === '' ? 'anonymous' : foreign(found.identity, 'wrap')),
      fact('Left of its ttl', meter.element),
      fact('Client', found.attached ? 'attached' : 'not attached'),
      fact('Requests', count(found.requests)),
      fact('Lock-delay', setting(found.lock_delay_ms)),
      fact('Linger', setting(found.linger_ms)),
    ]);
  }

  function showLocks() {
    /** @type {any[]} */
    const items = [];
    let total = 0;
    for (const lock of store.locks.values()) {
      const hold = lock.holds.find((it) => it.session === session);
      if (hold === undefined && !lock.waiters.includes(session)) continue;
      total += 1;
      if (items.length >= LOCKS_SHOWN) continue;
      const part = hold === undefined ? 'waits' : `${hold.state === 'revoked' ? 'being broken' : 'holds'}, ${modeText(hold)}`;
      items.push({ key: lock.name, name: lock.name, part, token: hold?.token ?? 0, since: hold?.since ?? NaN });
    }
    table.show(items);
    table.element.hidden = items.length === 0;
    const which = store.scope === '' ? '' : `, at and below ${store.scope} only`;
    const shown = total > items.length ? `The first ${count(items.length)} of ${counted(total, 'lock')}` : counted(total, 'lock');
    setText(note, `${shown}${which}; of each lock the first ten holds and waiting requests are searched.${store.hasSynced ? '' : ' The locks are still being loaded.'}`);
  }
}
