// @ts-check
// The audit trail of this node.

import { get, isAbort } from './api.js';
import { auditTable } from './audit-table.js';
import { el, fill, setText } from './dom.js';
import { viewHref } from './names.js';
import { replaceRoute } from './router.js';

const PAGE_SIZE = 100;

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
  const whose = el('p', { class: 'dim' }, 'Each node has its own trail; this is that of the node that this page comes from.');
  const frame = el('div', { class: 'panel' });
  let inner = new AbortController();
  const apply = (/** @type {string} */ prefix) => {
    inner.abort();
    inner = new AbortController();
    input.value = prefix;
    fill(frame, auditTable({ prefix, pageSize: PAGE_SIZE, signal: inner.signal }).element);
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
    // The same again: newer records.
    el('button', { type: 'button', onclick: () => apply(input.value) }, 'Refresh'),
  );
  fill(root, el('div', { class: 'page-head' }, el('h1', {}, 'Audit trail'), whose), form, frame);
  signal.addEventListener('abort', () => inner.abort());
  apply(route.parameters.get('prefix') ?? '');
  get('v1/status', signal).then(
    ({ node }) => setText(whose, `Each node has its own trail; this is that of node ${node}. What is done is recorded by the node that does it, usually the leader; a refusal by the node that refuses.`),
    (error) => {
      // Without the number the note above stays.
      if (!isAbort(error)) whose.title = String(error);
    },
  );
  return {
    /** @param {import('./router.js').Route} next */
    update(next) {
      apply(next.parameters.get('prefix') ?? '');
    },
  };
}
