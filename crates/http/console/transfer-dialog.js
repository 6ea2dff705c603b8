// @ts-check
// The order to make another node lead.

import { post } from './api.js';
import { el } from './dom.js';
import { openOrder } from './order-dialog.js';

/**
 * @param {number} node
 * @param {number} leader the node that leads now; 0: unknown
 * @param {AbortSignal} signal closes the dialog
 * @param {() => void} done called after an answer
 */
export function openTransfer(node, leader, signal, done) {
  openOrder(
    {
      heading: 'Make another node lead',
      verb: () => `Make node ${node} the leader`,
      number: node,
      numberName: 'node’s number',
      before: [
        el('dl', { class: 'short' }, el('dt', {}, 'Leads now'), el('dd', { class: 'num' }, leader > 0 ? `node ${leader}` : 'unknown'), el('dt', {}, 'Is to lead'), el('dd', { class: 'num' }, `node ${node}`)),
        el('p', {}, 'The leader waits until the other has its whole log, and then stands back. Locks stay held, and queues stay as they are; requests are answered a moment later than usual.'),
      ],
      send: () => post('v1/transfer', { node }, signal),
      show: ({ leader: now }) => ({ box: resultBox(node, Number(now)), isOver: now === node }),
      refused: 'The leadership was not transferred',
      concerns: 'this node',
    },
    signal,
    done,
  );
}

/**
 * @param {number} node
 * @param {number} now
 */
function resultBox(node, now) {
  if (now === node) return el('div', { class: 'box good' }, el('strong', {}, 'Done'), el('p', {}, `Node ${node} leads.`));
  return el('div', { class: 'box warn' }, el('strong', {}, `Node ${now} leads`), el('p', {}, `Node ${node} does not: another was elected meanwhile.`));
}
