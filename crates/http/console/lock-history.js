// @ts-check
// What has happened to a lock: as the watch has shown it since the page was opened, and what the audit trails know, also of
// the time before.

import { isAbort } from './api.js';
import { el, fill, foreign, panel, setText } from './dom.js';
import { clock, counted, dateTime } from './format.js';
import { ENTRIES_MAX } from './history.js';
import { store } from './lock-store.js';
import { readTrail } from './lock-trail.js';
import { viewHref } from './names.js';

/** Entries that are shown until more are wanted. */
const ENTRIES_FIRST = 20;

/** @typedef {import('./history.js').Entry} Entry */
/** @typedef {import('./lock-trail.js').TrailEntry} TrailEntry */

/**
 * @param {string} name
 * @param {AbortSignal} signal
 */
export function lockHistory(name, signal) {
  const list = el('ol', { class: 'history' });
  const note = el('span', { class: 'dim' });
  const link = el('a', { href: viewHref('audit', { prefix: name }), hidden: true }, 'Audit trail at and below this name');
  let most = ENTRIES_FIRST;
  const more = el('button', { type: 'button', hidden: true, onclick: () => {
    most = Infinity;
    draw();
  } }, 'Show all');
  const element = panel('History', [note, link], list, more);
  const entries = store.history.of(name);
  /** @type {TrailEntry[]} */
  let trail = [];
  let drawn = { last: /** @type {unknown} */ (null), length: -1, trail, most };
  let isDenied = false;
  draw();
  void renew();
  return { element, draw, renew };

  /** Reads the audit trails again. They are absent for those who may not read them; a failure leaves what is shown. */
  async function renew() {
    if (isDenied) return;
    try {
      const found = await readTrail(name, signal);
      isDenied = found === null;
      link.hidden = isDenied;
      trail = found ?? [];
      draw();
    } catch (error) {
      if (!isAbort(error)) setText(note, `${noteText()} The audit trail can’t be read now.`);
    }
  }

  function noteText() {
    if (entries.length >= ENTRIES_MAX) return `The last ${ENTRIES_MAX} changes.`;
    return entries.length === 0 ? 'No change since this console was opened.' : `${counted(entries.length, 'change')} since this console was opened.`;
  }

  function draw() {
    const last = entries[entries.length - 1];
    if (drawn.last === last && drawn.length === entries.length && drawn.trail === trail && drawn.most === most) return;
    drawn = { last, length: entries.length, trail, most };
    const all = [...entries.map((entry) => ({ at: entry.at, make: () => changeItem(entry) })), ...trail.map((entry) => ({ at: entry.at, make: () => recordItem(entry) }))];
    // Of what happened in one moment the last stands first too.
    all.reverse().sort((a, b) => b.at - a.at);
    const shown = all.slice(0, most);
    // With entries of other days every time has its date.
    const today = new Date().toDateString();
    list.classList.toggle('dated', shown.some(({ at }) => new Date(at).toDateString() !== today));
    fill(list, shown.map(({ make }) => make()));
    more.hidden = all.length <= shown.length;
    setText(note, noteText());
  }
}

/** @param {number} at */
function when(at) {
  return el('time', { class: 'num', title: dateTime(at) }, el('span', { class: 'date' }, `${dateTime(at).slice(0, 10)} `), clock(at));
}

/** @param {Entry} entry */
function changeItem({ at, what, token, who, text, reason, isLate }) {
  return el(
    'li',
    { class: `entry ${what}` },
    when(at),
    el(
      'span',
      {},
      tokenText(token),
      text,
      who === '' ? null : [' ', foreign(who)],
      reason === '' ? null : [': ', foreign(reason, 'wrap')],
      isLate ? el('span', { class: 'dim' }, ' (found when the connection was back)') : null,
    ),
  );
}

/** @param {TrailEntry} entry */
function recordItem({ at, node, record }) {
  const text = (/** @type {unknown} */ value) => (value === undefined || value === null ? '' : String(value));
  const [identity, address, detail, reason, result] = [record.identity, record.address, record.detail, record.reason, record.result].map(text);
  return el(
    'li',
    { class: 'entry record', title: `record ${text(record.number)} of node ${node}` },
    when(at),
    el(
      'span',
      {},
      tokenText(Number(record.token ?? 0)),
      foreign(text(record.what)),
      ', ordered by ',
      foreign(identity || 'anonymous'),
      address === '' ? null : el('span', { class: 'dim' }, ' at ', foreign(address)),
      detail === '' ? null : [', ', foreign(detail, 'wrap')],
      reason === '' ? null : [': ', foreign(reason, 'wrap')],
      result === 'done' || result === '' ? null : [', ', el('span', { class: `result ${['refused', 'failed', 'unknown'].includes(result) ? 'bad' : ''}` }, result)],
      el('span', { class: 'tag' }, 'audit trail'),
    ),
  );
}

/** @param {number} token 0: none */
function tokenText(token) {
  return token === 0 ? null : [el('span', { class: 'num token' }, `token ${token}`), ' '];
}
