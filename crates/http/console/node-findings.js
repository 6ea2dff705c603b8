// @ts-check
// What is wrong with the nodes, or soon will be, and what to do about it: as `lockkeeper doctor` finds it.

import { el, foreign } from './dom.js';
import { bytes, count, counted, duration } from './format.js';

/**
 * @typedef {object} Finding
 * @property {'bad' | 'warn'} level bad: something does not work now
 * @property {string} text
 * @property {string} [said] text of a node; shown after `text`
 * @property {string} remedy
 */

/** A node applies what is committed at once; with more entries to go it is too slow, or catches up after its start. */
export const BEHIND_MAX = 10_000;
/** A certificate that ends sooner is a finding, in milliseconds. */
export const CERTIFICATE_MS = 30 * 24 * 3_600_000;
/** A disk that will be full sooner is a finding, with that time. */
const HOUR_SECONDS = 3_600;
const DAY_MS = 24 * 3_600_000;

/**
 * The findings, those that are bad now first. Empty before anything is known.
 *
 * @param {import('./node-watch.js').Nodes} nodes
 * @returns {Finding[]}
 */
export function findingsOf({ own, members, others, isLeaderless, asksOthers }) {
  /** @type {Finding[]} */
  const found = [];
  if (isLeaderless) found.push({ level: 'bad', text: 'No leader answers: nothing is granted, released or renewed.', remedy: 'A majority of the voters must run and reach each other.' });
  if (members !== null) found.push(...ofMembers(members));
  const silent = new Set((members?.nodes ?? []).filter((/** @type {any} */ it) => !it.answers).map((/** @type {any} */ it) => it.node));
  const statuses = own === null ? [] : [own];
  for (const [node, { status, problem }] of others) {
    if (status !== undefined) statuses.push(status);
    // A node that does not answer the leader is a finding already.
    else if (asksOthers && !silent.has(node)) found.push({ level: 'warn', text: `Node ${node} does not give its status:`, said: problem, remedy: 'Look at its log.' });
  }
  for (const status of statuses) found.push(...ofNode(status));
  found.push(...ofAll(statuses));
  return [...found.filter((it) => it.level === 'bad'), ...found.filter((it) => it.level === 'warn')];
}

/**
 * How many more voters may fail; below 0: the service does not work.
 *
 * @param {any[]} nodes
 */
export function failuresLeft(nodes) {
  const voters = nodes.filter((it) => it.part === 'voter');
  return voters.filter((it) => it.answers).length - (Math.floor(voters.length / 2) + 1);
}

/**
 * @param {any} members
 * @returns {Finding[]}
 */
function ofMembers({ nodes, last }) {
  /** @type {Finding[]} */
  const found = [];
  for (const { node, answers, matched, receives_snapshot: isFilled, data_lost: isLost } of nodes) {
    const behind = last - matched;
    if (!answers && isLost) found.push({ level: 'bad', text: `The data of node ${node} are lost: an empty node runs in its place.`, remedy: `lockkeeper cluster replace ${node} takes that one in.` });
    else if (!answers) found.push({ level: 'bad', text: `Node ${node} does not answer.`, remedy: 'Start it, or look at its log.' });
    else if (isFilled) found.push({ level: 'warn', text: `Node ${node} is so far behind that it receives a snapshot.`, remedy: 'It catches up by itself.' });
    else if (behind > BEHIND_MAX) found.push({ level: 'warn', text: `Node ${node} is ${count(behind)} entries behind the leader.`, remedy: 'It is overloaded, or catches up after its start.' });
  }
  const voters = nodes.filter((/** @type {any} */ it) => it.part === 'voter').length;
  const left = failuresLeft(nodes);
  // A service of one node is somebody's choice. With an even number of voters a loss is no finding but that of the margin.
  if (voters === 2) found.push({ level: 'warn', text: 'Two nodes vote: the loss of either stops the service.', remedy: 'Add a third, or remove one.' });
  else if (voters > 2 && left === 0) found.push({ level: 'bad', text: 'The service tolerates no failure: the loss of one more node stops it.', remedy: 'Bring back those that do not answer.' });
  return found;
}

/**
 * @param {any} status
 * @returns {Finding[]}
 */
function ofNode(status) {
  const { node, committed, applied, audit_error: auditError, backup_error: backupError, files_error: filesError, certificate_ends: ends } = status;
  /** @type {Finding[]} */
  const found = [];
  if (status.leader === undefined) found.push({ level: 'bad', text: `Node ${node} knows no leader: nothing can be acquired or renewed there.`, remedy: 'Look at its log.' });
  if (committed - applied > BEHIND_MAX) found.push({ level: 'warn', text: `Node ${node} has yet to apply ${count(committed - applied)} entries of its log.`, remedy: 'It is overloaded, or has just started.' });
  found.push(...ofDisk(status));
  if (auditError !== undefined) found.push({ level: 'bad', text: `Node ${node} can’t write its audit file:`, said: String(auditError), remedy: 'Free space, or mend the disk: until then what operators do there is in its log only.' });
  if (backupError !== undefined) found.push({ level: 'bad', text: `Node ${node} fails to make the backups of its schedule:`, said: String(backupError), remedy: 'Look at the folder of the backups.' });
  if (filesError !== undefined) found.push({ level: 'bad', text: `Node ${node} can’t use files that have changed, and works with the old ones:`, said: String(filesError), remedy: 'Correct them: the node reads them again by itself.' });
  if (typeof ends === 'number') found.push(...ofCertificate(node, ends * 1_000 - Date.now()));
  else found.push(...ofAddress(status));
  return found;
}

/**
 * @param {any} status
 * @returns {Finding[]}
 */
function ofDisk({ node, disk_free_bytes: free, disk_state: state, disk_full_in_seconds: left }) {
  const room = typeof free === 'number' ? ` (${bytes(free)} free)` : '';
  const soon = typeof left === 'number' && left < HOUR_SECONDS ? `, and will be full in ${duration(left * 1_000)}` : '';
  if (state === 'full') return [{ level: 'bad', text: `The disk of node ${node} is full${room}: it can’t lead, and stops when the present part of its log is full.`, remedy: 'Free space there.' }];
  if (state === 'low') return [{ level: 'warn', text: `The disk of node ${node} has little room left${room}${soon}.`, remedy: 'Free space there.' }];
  if (state === 'unknown') return [{ level: 'bad', text: `The disk of node ${node} does not answer.`, remedy: 'Look at its log, and at dmesg there.' }];
  return [];
}

/**
 * @param {number} node
 * @param {number} left milliseconds
 * @returns {Finding[]}
 */
function ofCertificate(node, left) {
  const remedy = 'Renew it (lockkeeper tls renew); the node reads the new one by itself.';
  if (left <= 0) return [{ level: 'bad', text: `The certificate of node ${node} has ended: others refuse this node.`, remedy }];
  const rest = left >= DAY_MS ? counted(Math.floor(left / DAY_MS), 'day') : duration(left);
  return left < CERTIFICATE_MS ? [{ level: 'warn', text: `The certificate of node ${node} ends in ${rest}.`, remedy }] : [];
}

/**
 * Without a certificate, a node should be reached on its own host only.
 *
 * @param {any} status
 * @returns {Finding[]}
 */
function ofAddress({ node, members }) {
  const address = String(members?.find((/** @type {any} */ it) => it.node === node)?.client_address ?? '');
  if (address === '' || /^(localhost|127(\.\d+){3}|\[::1\]|\[::ffff:127[.\d]+\])(:\d+)?$/.test(address)) return [];
  return [{ level: 'warn', text: `Node ${node} is reached over a network without encryption: whoever is in between can read and change what is sent.`, remedy: 'Use TLS.' }];
}

/**
 * What the nodes should have in common.
 *
 * @param {any[]} statuses
 * @returns {Finding[]}
 */
function ofAll(statuses) {
  const differ = (/** @type {string} */ key) => new Set(statuses.map((it) => it[key])).size > 1;
  /** @type {Finding[]} */
  const found = [];
  if (differ('cluster')) found.push({ level: 'bad', text: 'The nodes belong to different clusters, which exclude nobody from each other’s locks.', remedy: 'Correct their addresses.' });
  if (differ('version')) found.push({ level: 'warn', text: 'The nodes have different versions.', remedy: 'Finish the upgrade.' });
  if (differ('permissions')) found.push({ level: 'warn', text: 'The nodes have different files of permissions: what a client may do depends on the node that it reaches.', remedy: 'Give all of them the same.' });
  return found;
}

/**
 * The findings as a list.
 *
 * @param {Finding[]} findings
 * @param {string} [href] where each leads; empty: they stand there
 */
export function findingsList(findings, href = '') {
  const line = (/** @type {Finding} */ { level, text, said, remedy }) => [
    // When to act.
    el('span', { class: `sign ${level}` }, level === 'bad' ? 'Now' : 'Soon'),
    el('span', {}, href === '' ? text : el('a', { href }, text), said === undefined ? null : [' ', foreign(said, 'wrap')], el('span', { class: 'sub' }, remedy)),
  ];
  return el('ul', { class: 'findings' }, findings.map((it) => el('li', {}, line(it))));
}
