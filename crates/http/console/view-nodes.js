// @ts-check
// The nodes of the cluster: who leads, how far each is, how each is, and the order to make another lead.

import { el, fill, foreign, panel, setText } from './dom.js';
import { bytes, clock, count, dateTime, duration, utc } from './format.js';
import { fillRow, keyedTable } from './hold-table.js';
import { BEHIND_MAX, CERTIFICATE_MS, failuresLeft, findingsList, findingsOf } from './node-findings.js';
import { watchNodes } from './node-watch.js';
import { problemBox } from './problem-box.js';
import { openTransfer } from './transfer-dialog.js';

/** A disk that will be full sooner is shown with that time. */
const HOUR_SECONDS = 3_600;

const DAY_MS = 24 * 3_600_000;

export function nodesTitle() {
  return 'Nodes';
}

/**
 * @param {import('./router.js').Route} _route
 * @param {HTMLElement} root
 * @param {AbortSignal} signal
 */
export function mountNodes(_route, root, signal) {
  const alarm = el('div');
  const lead = el('p', { class: 'facts' });
  const asOf = el('span', { class: 'dim' });
  const cards = el('div', { class: 'cards' });
  const failed = el('div');
  const findings = el('div');
  const attention = panel('Needs attention', null, findings);
  attention.hidden = true;

  const columns = ['Node', 'Part', 'Answers', 'Behind the leader', 'To nodes', 'To clients', 'Action'];
  const table = keyedTable('Members', columns, (/** @type {any} */ it) => String(it.node), (it, row) => {
    // What changes with each entry of the log is filled in beside: else the button would lose the focus.
    const { behind, matched, receives_snapshot: isFilled, ...rest } = it;
    fillRow(row, columns, rest, () => [
      el('span', { class: 'num' }, `node ${it.node}`, it.isLeader ? el('span', { class: 'tag' }, 'leader') : null, it.isOwn ? el('span', { class: 'tag' }, 'this node') : null),
      it.part === 'voter' ? 'voter' : el('span', { class: 'state closed' }, it.part),
      it.isStale ? el('span', { class: 'dim' }, 'unknown') : el('span', { class: `state ${it.answers ? 'held' : 'breaking'}` }, it.answers ? 'answers' : 'does not answer'),
      el('span', { 'data-lag': '' }),
      it.peer_address === '' ? el('span', { class: 'dim' }, 'none') : foreign(it.peer_address),
      foreign(it.client_address),
      it.mayLead ? el('button', { type: 'button', 'aria-label': `Make node ${it.node} the leader`, onclick: () => openTransfer(it.node, nodes.members?.leader ?? 0, signal, againMembers) }, 'Make leader…') : '',
    ]);
    const cell = row.querySelector('[data-lag]');
    if (cell instanceof HTMLElement) showLag(cell, it);
  });
  fill(root, el('div', { class: 'page-head' }, el('h1', {}, 'Nodes'), lead), alarm, attention, panel('Members', asOf, table.element), failed, cards);

  const { nodes, againMembers, againStatus } = watchNodes(signal, show);

  function show() {
    const { membersProblem, statusProblem } = nodes;
    fill(alarm, membersProblem === null ? null : membersAlarm(membersProblem));
    fill(failed, statusProblem === null ? null : problemBox('This node’s status can’t be read', statusProblem, { retry: () => againStatus() }));
    // Without a leader the box above says so.
    const found = findingsOf({ ...nodes, isLeaderless: false });
    attention.hidden = found.length === 0;
    fill(findings, findingsList(found));
    showMembers();
    if (nodes.own !== null) showCards();
  }

  /** @param {import('./api.js').Problem} problem */
  function membersAlarm(problem) {
    if (problem.status === 401 || problem.status === 403) return problemBox('The members can’t be read', problem);
    const hasNoLeader = problem.code === 'unavailable' || problem.code === 'deadline-exceeded';
    const hint = hasNoLeader
      ? 'Without a leader nothing is granted, released or renewed. Locks that are held stay held, and tokens stay in order; but a client that can’t renew for its ttl has to take its locks as lost. If this lasts longer than some seconds: a majority of the voters must run and reach each other.'
      : '';
    return problemBox(hasNoLeader ? 'No leader answers' : 'The members can’t be read', problem, { hint, retry: () => againMembers() });
  }

  function showMembers() {
    const { own, members, isLeaderless } = nodes;
    const source = members?.nodes ?? own?.members;
    if (source === undefined) return;
    // What a node takes for the leader does not count if no leader answers.
    const leader = isLeaderless ? 0 : (members?.leader ?? own?.leader ?? 0);
    const last = members?.last;
    table.show(source.map((/** @type {any} */ it) => ({
      ...it,
      behind: last === undefined ? null : Math.max(0, last - it.matched),
      isLeader: it.node === leader,
      isOwn: it.node === own?.node,
      isStale: members === null,
      mayLead: members !== null && it.part === 'voter' && it.answers && it.node !== leader,
    })));
    const term = members?.term ?? own?.term;
    fill(lead, leader > 0 ? el('span', { class: 'state big held' }, `node ${leader} leads`) : el('span', { class: 'state big breaking' }, isLeaderless ? 'no leader answers' : 'no leader is known'), el('span', { class: 'dim' }, `term ${count(term)}`), tolerance(members?.nodes), members?.changing ? el('span', { class: 'state closed' }, 'a change of members is in progress') : null, own === null ? null : el('span', { class: 'dim' }, removedText(own)));
    setText(asOf, members === null ? 'as this node last knew them' : `as of ${clock(Date.now())}`);
  }

  function showCards() {
    const shown = [card(nodes.own, 'this node')];
    for (const [id, { status, problem }] of [...nodes.others].sort(([a], [b]) => a - b)) {
      shown.push(status === undefined ? panel(`Node ${id}`, el('span', { class: 'state breaking' }, 'no status'), el('p', {}, foreign(problem ?? '', 'wrap'))) : card(status, ''));
    }
    fill(cards, shown);
    if (!nodes.asksOthers) cards.append(el('p', { class: 'dim' }, 'This version shows the status of this node only; open the console of another node for that node.'));
  }
}

/**
 * How many more nodes may fail.
 *
 * @param {any[] | undefined} nodes
 */
function tolerance(nodes) {
  if (nodes === undefined) return null;
  const left = failuresLeft(nodes);
  return el('span', { class: left > 0 ? 'dim' : 'state closed' }, left > 0 ? `tolerates ${left === 1 ? '1 failure' : `${left} failures`}` : 'tolerates no failure');
}

/** @param {any} status */
function removedText({ removed }) {
  return Array.isArray(removed) && removed.length > 0 ? `former members: ${removed.join(', ')}` : '';
}

/**
 * @param {HTMLElement} cell
 * @param {any} it
 */
function showLag(cell, { behind, matched, receives_snapshot: isFilled }) {
  cell.className = behind === null ? 'dim' : isFilled ? 'state closed' : 'num';
  cell.title = behind === null ? '' : `It has the log up to entry ${matched}.`;
  setText(cell, behind === null ? 'unknown' : isFilled ? 'receives a snapshot' : behind === 0 ? 'nothing' : `${count(behind)} entries`);
}

/**
 * What a node says of itself.
 *
 * @param {any} status
 * @param {string} tag
 */
function card(status, tag) {
  const rows = [
    fact('Role', status.role),
    fact('Version', el('span', {}, foreign(String(status.version)), `, rules ${status.rules}`)),
    fact('Applied', number(status.applied), status.committed - status.applied > BEHIND_MAX ? `${count(status.committed - status.applied)} committed entries are not applied yet` : ''),
    fact('Committed', number(status.committed)),
    fact('Snapshot', status.snapshot === 0 ? 'none' : number(status.snapshot)),
    fact('Last token', el('span', { class: 'num token' }, String(status.last_token))),
    fact('Sessions', number(status.sessions)),
    fact('Requests', number(status.requests)),
    fact('Streams', number(status.streams)),
    certificate(status.certificate_ends),
    disk(status),
    status.audit_error === undefined ? null : fact('Audit file', 'can\'t be written', String(status.audit_error)),
    status.backup_error === undefined ? null : fact('Backups', 'fail', String(status.backup_error)),
    status.files_error === undefined ? null : fact('Files', 'can\'t be used', String(status.files_error)),
    fact('Permissions', status.permissions === undefined ? 'no file' : short(status.permissions)),
    fact('Cluster', short(status.cluster)),
    fact('Data directory', short(status.incarnation)),
  ];
  return panel(`Node ${status.node}`, tag === '' ? null : el('span', { class: 'tag' }, tag), el('dl', { class: 'facts-list' }, rows));
}

/**
 * @param {string} name
 * @param {any} value
 * @param {string} [warning]
 */
function fact(name, value, warning = '') {
  return el('div', {}, el('dt', {}, name), el('dd', {}, value, warning === '' ? null : el('span', { class: 'warning' }, warning)));
}

/** @param {number | undefined} ends seconds since 1970 */
function certificate(ends) {
  if (typeof ends !== 'number') return fact('Certificate', 'none');
  const left = ends * 1_000 - Date.now();
  const date = el('time', { class: 'num', title: utc(ends * 1_000) }, dateTime(ends * 1_000));
  if (left <= 0) return fact('Certificate', ['ended ', date], 'It has ended: others refuse this node. Replace it now.');
  const days = left >= DAY_MS ? `${count(Math.floor(left / DAY_MS))} d` : duration(left);
  return fact('Certificate', ['ends ', date], left < CERTIFICATE_MS ? `Ends in ${days}. Replace it; the node reads the new one by itself.` : '');
}

/** @param {any} status */
function disk({ disk_used_bytes: used, disk_free_bytes: free, disk_state: state, disk_full_in_seconds: left }) {
  if (typeof used !== 'number' || typeof free !== 'number') return fact('Disk', 'unknown', 'It does not answer. Look at the log of this node.');
  const soon = typeof left === 'number' && left < HOUR_SECONDS ? ` It will be full in ${duration(left * 1_000)}.` : '';
  const warnings = {
    low: `Little is free.${soon} With a full disk the node stops.`,
    full: 'It is full. This node gives the leadership away, and stops when the present part of its log is full. Free space there.',
  };
  return fact('Disk', `${bytes(used)} used, ${bytes(free)} free`, warnings[/** @type {'low' | 'full'} */ (state)] ?? '');
}

/** @param {number} value */
function number(value) {
  return el('span', { class: 'num' }, count(value));
}

/**
 * The start of a digest or id; the whole is in the title.
 *
 * @param {unknown} value
 */
function short(value) {
  const text = String(value ?? '');
  return el('code', { title: text }, text.length > 12 ? `${text.slice(0, 12)}…` : text);
}
