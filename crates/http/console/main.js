// @ts-check
// Starts the console: routes, the title of the tab, keys that work everywhere, and what the header shows.

import { fill } from './dom.js';
import { showConnection } from './connection.js';
import { currentRoute } from './router.js';
import { access } from './api.js';
import { identity, signOut, watchAccess } from './sign-in.js';
import { store } from './lock-store.js';
import { token } from './token.js';
import { attentionTitle, mountAttention } from './view-attention.js';
import { auditTitle, mountAudit } from './view-audit.js';
import { lockTitle, mountLock } from './view-lock.js';
import { lastLocksHref, locksTitle, mountLocks } from './view-locks.js';
import { mountNodes, nodesTitle } from './view-nodes.js';
import { mountSession, sessionTitle } from './view-session.js';
import { mountSessions, sessionsTitle } from './view-sessions.js';

/** @typedef {import('./router.js').Route} Route */

/**
 * @typedef {object} View
 * @property {string} tab the entry of the navigation that is marked
 * @property {(route: Route) => string} title
 * @property {(route: Route, root: HTMLElement, signal: AbortSignal) => { update?: (route: Route) => void } | void} mount
 */

/** @type {Record<string, View>} */
const VIEWS = {
  attention: { tab: 'attention', title: attentionTitle, mount: mountAttention },
  locks: { tab: 'locks', title: locksTitle, mount: mountLocks },
  lock: { tab: 'locks', title: lockTitle, mount: mountLock },
  sessions: { tab: 'sessions', title: sessionsTitle, mount: mountSessions },
  session: { tab: 'sessions', title: sessionTitle, mount: mountSession },
  nodes: { tab: 'nodes', title: nodesTitle, mount: mountNodes },
  audit: { tab: 'audit', title: auditTitle, mount: mountAudit },
};

const content = /** @type {HTMLElement} */ (document.getElementById('content'));
const signOutButton = /** @type {HTMLButtonElement} */ (document.getElementById('sign-out'));
const links = /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll('nav a[data-view]'));

let controller = new AbortController();
let shown = { key: '', mounted: /** @type {{ update?: (route: Route) => void } | void} */ (undefined) };

function show() {
  // The link past the navigation is not a route.
  if (location.hash === '#content') return;
  const route = currentRoute();
  const isSession = route.view === 'sessions' && route.rest !== '';
  const name = isSession ? 'session' : Object.hasOwn(VIEWS, route.view) ? route.view : 'attention';
  const view = VIEWS[name];
  document.title = `${view.title(route)} – Lockkeeper`;
  for (const link of links) {
    if (link.dataset.view === view.tab) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
    if (link.dataset.view === 'locks') link.href = lastLocksHref();
  }
  const key = `${name}/${route.rest}`;
  if (key === shown.key && shown.mounted?.update) {
    shown.mounted.update(route);
    return;
  }
  mount(key, view, route);
}

/**
 * @param {string} key
 * @param {View} view
 * @param {Route} route
 */
function mount(key, view, route) {
  const isFirst = shown.key === '';
  controller.abort();
  controller = new AbortController();
  fill(content);
  content.scrollTop = 0;
  shown = { key, mounted: view.mount(route, content, controller.signal) };
  // Whoever navigates by keyboard or screen reader goes on in the new view.
  if (!isFirst) content.focus({ preventScroll: true });
}

function showIdentity() {
  signOutButton.hidden = token() === '';
}

addEventListener('hashchange', show);
addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = event.target;
  if (at instanceof HTMLElement && at.closest('input, select, textarea, dialog')) return;
  event.preventDefault();
  const search = document.getElementById('search');
  if (search instanceof HTMLInputElement) search.select();
  else {
    location.hash = lastLocksHref();
    requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById('search')?.focus()));
  }
});
identity.addEventListener('changed', () => {
  showIdentity();
  store.restart();
  shown.key = '';
  show();
});
signOutButton.addEventListener('click', signOut);
access.addEventListener('unauthenticated', showIdentity);
watchAccess();
showIdentity();
showConnection();
show();
// Other views need the locks too; that of the locks has chosen the scope by now.
if (store.status.state === 'connecting') store.watch(store.scope);
