// @ts-check
// Records of the audit trail, newest first, in pages.

import { asProblem, get, isAbort } from './api.js';
import { el, fill, foreign, nameText } from './dom.js';
import { dateTime, utc } from './format.js';
import { fillRow, keyedTable } from './hold-table.js';
import { encoded, lockHref } from './names.js';
import { problemBox } from './problem-box.js';

/**
 * A table of records, which reads its first page at once.
 *
 * @param {object} options
 * @param {number} [options.node] whose trail; 0: that of the node that serves this page
 * @param {string} options.prefix only records of this name and those below it; empty: all
 * @param {number} options.pageSize
 * @param {AbortSignal} options.signal
 */
export function auditTable({ node = 0, prefix, pageSize, signal }) {
  const columns = ['Time', 'What', 'Identity', 'Name', 'Result', 'Reason and detail'];
  /** @type {any[]} */
  let records = [];
  /** @type {number | undefined} */
  let before;
  /** The highest number that was seen. */
  let newest = 0;

  const table = keyedTable('Audit records', columns, (/** @type {any} */ record) => String(record.number), (record, row) => {
    fillRow(row, columns, record.number, () => cells(record));
  });
  const failed = el('div');
  const none = el('p', { class: 'dim', hidden: true }, 'No record.');
  const more = el('button', { type: 'button', hidden: true, onclick: () => void load() }, 'Load older records');
  table.element.hidden = true;
  const element = el('div', {}, failed, table.element, none, el('p', { class: 'actions' }, more));
  void load();

  /** @param {number} [older] only records with a lower number */
  async function read(older) {
    const at = older === undefined ? '' : `&before=${older}`;
    const page = await get(`v1/audit?node=${node}&prefix=${encoded(prefix)}&page_size=${pageSize}${at}`, signal);
    const all = Array.isArray(page.records) ? page.records : [];
    newest = Math.max(newest, all[0]?.number ?? 0);
    return { all, next: page.next_before };
  }

  function show() {
    fill(failed);
    table.show(records);
    table.element.hidden = records.length === 0;
    none.hidden = records.length > 0 || before !== undefined;
    more.hidden = before === undefined;
  }

  /** Adds what was recorded since the last call. Throws what the call throws; what is shown stays. */
  async function renew() {
    const known = newest;
    const { all, next } = await read();
    const fresh = all.filter((/** @type {any} */ record) => record.number > known);
    // Records that don't follow on the known ones would hide a gap. So it is after a restart of the node, which numbers anew.
    const hasGap = all.length > 0 && next !== undefined && all[all.length - 1].number > known;
    const isAnew = hasGap || records.length === 0 || all[0]?.number > known + all.length;
    if (isAnew) {
      before = next;
      records = all;
    } else {
      records = fresh.concat(records);
    }
    if (isAnew || fresh.length > 0) show();
  }

  async function load() {
    more.disabled = true;
    try {
      const { all, next } = await read(before);
      before = next;
      records = records.concat(all);
      show();
    } catch (error) {
      if (isAbort(error)) return;
      const problem = asProblem(error);
      const text = problem.status === 404 ? 'This node serves no audit trail here: it is of an older version, or has none.' : '';
      fill(failed, problemBox('The audit trail can’t be read', problem, { hint: text, retry: () => void load() }));
    }
    more.disabled = false;
  }
  return { element, renew };
}

/** @param {any} record */
function cells(record) {
  const text = (/** @type {unknown} */ value) => (value === undefined || value === null ? '' : String(value));
  const at = Date.parse(text(record.time));
  const name = text(record.name);
  const details = [text(record.reason), text(record.detail)].filter((it) => it !== '');
  return [
    el('time', { class: 'num nowrap', title: `${utc(at)}, record ${text(record.number)}` }, dateTime(at)),
    el('span', { class: 'nowrap' }, foreign(text(record.what))),
    el('span', { class: 'holder' }, foreign(text(record.identity) || 'anonymous'), record.address === undefined ? null : el('span', { class: 'sub' }, foreign(text(record.address)))),
    name === '' ? '' : el('span', { class: 'holder' }, el('a', { href: lockHref(name) }, nameText(name)), record.token === undefined ? null : el('span', { class: 'sub num nowrap' }, `token ${text(record.token)}`)),
    el('span', { class: `result nowrap ${['refused', 'failed', 'unknown'].includes(record.result) ? 'bad' : ''}` }, text(record.result)),
    details.map((it, index) => el('span', { class: index === 0 ? 'first' : 'sub' }, foreign(it, 'wrap'))),
  ];
}
