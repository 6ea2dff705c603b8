// @ts-check
// The audit trails of the nodes.

import { get, isAbort } from './api.js';
import { auditTable } from './audit-table.js';
import { el, fill } from './dom.js';
import { viewHref } from './names.js';
import { refresh } from './refresh.js';
import { replaceRoute } from './router.js';

const PAGE_SIZE = 100;
const REFRESH_MS = 5_000;

/** @param {import('./router.js').Route} route */
export function auditTitle(route) {
  const prefix = route.parameters.get('prefix');
  return prefix ? `Audit: ${prefix}` : 'Audit';
}

/**
 * @param {import('./router.js').Route} route
 * @param {HTMLElement} root
 * @param {AbortSignal} signal
 */
export function mountAudit(route, root, signal) {
  const input = el('input', { type: 'search', id: 'search', placeholder: 'A name and those below it ( / )', 'aria-label': 'Only records of this name and those below it', autocomplete: 'off', spellcheck: 'false' });
  const node = el('select', { 'aria-label': 'Whose trail', onchange: () => apply(input.value) });
  const whose = el('p', { class: 'dim' }, 'Each node has its own trail. What is done is recorded by the node that does it, usually the leader; a refusal by the node that refuses.');
  const frame = el('div', { class: 'panel' });
  let inner = new AbortController();
  const apply = (/** @type {string} */ prefix) => {
    inner.abort();
    inner = new AbortController();
    input.value = prefix;
    const table = auditTable({ node: Number(node.value), prefix, pageSize: PAGE_SIZE, signal: inner.signal });
    fill(frame, table.element);
    const renewing = new AbortController();
    inner.signal.addEventListener('abort', () => renewing.abort());
    // Without the permission each further call would be a record of the trail.
    refresh(REFRESH_MS, renewing.signal, table.renew, () => {}, ({ status }) => (status === 401 || status === 403) && renewing.abort());
  };
  const form = el(
    'form',
    {
      class: 'tools',
      role: 'search',
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        const prefix = input.value.trim().replace(/^\/+|\/+$/g, '');
        replaceRoute(viewHref('audit', { prefix }));
        apply(prefix);
      },
    },
    input,
    el('button', {}, 'Search'),
    node,
  );
  fill(root, el('div', { class: 'page-head' }, el('h1', {}, 'Audit trail'), whose), form, frame);
  signal.addEventListener('abort', () => inner.abort());
  input.value = route.parameters.get('prefix') ?? '';
  get('v1/status', signal).then(
    (status) => {
      const nodes = Array.isArray(status.members) ? status.members.map((/** @type {any} */ member) => member.node) : [status.node];
      fill(node, nodes.map((/** @type {number} */ it) => el('option', { value: it, selected: it === (status.leader ?? status.node) }, `node ${it}${it === status.leader ? ', which leads' : ''}`)));
      apply(input.value);
    },
    (error) => {
      if (isAbort(error)) return;
      // The trail of this node can be shown without its number.
      fill(node, el('option', { value: 0 }, 'this node'));
      apply(input.value);
    },
  );
  return {
    /** @param {import('./router.js').Route} next */
    update(next) {
      apply(next.parameters.get('prefix') ?? '');
    },
  };
}
