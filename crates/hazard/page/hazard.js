// @ts-check
// The hazard player: loads stories and traces, follows the page's address, and connects the controls.

/** @import { Story, Trace } from './model.js' */
import { VERDICTS, FENCES, byId, html } from './model.js';
import { drawLegend } from './picture.js';
import { setPlaying, draw, showTrace, togglePlaying, stopAt, stopBeside, scrub, seek } from './player.js';
import { chosen, recorded, change, queryOf, fittingFences, drawForm, showForm, takeInput } from './settings.js';

/** @type {Story[]} */ let stories = [];
/** @type {AbortController|null} */ let loading = null;
/** Loads what the form says, once it has not changed for a moment. */
let timer = 0;

/** What says who calls: the console, on the same origin and in the same tab, keeps its token there. @returns {Record<string, string>} */
function identity() {
  try {
    const token = sessionStorage.getItem('lockkeeper-token');
    return token ? { authorization: `Bearer ${token}` } : {};
  } catch {
    // Without storage there is none.
    return {};
  }
}

/** The node does not know who calls. */
class Unidentified extends Error {}

/** The answer of the node, or the reason why there is none. @param {string} url @param {Record<string, string>} [headers] @param {AbortSignal} [signal] */
async function answerOf(url, headers = {}, signal = undefined) {
  const answer = await fetch(url, { signal, headers: { accept: 'application/json', ...headers } });
  const body = await answer.json().catch(() => ({}));
  if (answer.status === 401) throw new Unidentified();
  if (!answer.ok) throw new Error(body.detail ?? `the node answers ${answer.status}`);
  return body;
}

/** The trace of the chosen settings with a fence. @param {string} fence @param {AbortSignal} signal @returns {Promise<Trace>} */
async function traceOf(fence, signal) {
  const known = chosen.story.traces[fence];
  return known && chosen.changed.size === 0 ? known : answerOf(`hazard/trace?${queryOf(fence)}`, identity(), signal);
}

/** Gets the trace of what is chosen, and shows it. @param {{isFromStart?: boolean, plays?: boolean}} [how] */
async function load({ isFromStart = false, plays = false } = {}) {
  clearTimeout(timer);
  loading?.abort();
  const { signal } = (loading = new AbortController());
  document.body.dataset.ready = 'false';
  document.body.dataset.story = chosen.story.name;
  history.replaceState(null, '', `#${queryOf(chosen.fence)}`);
  const refusal = byId('refusal');
  try {
    const next = await traceOf(chosen.fence, signal);
    if (signal.aborted) return;
    refusal.hidden = true;
    byId('player').classList.remove('stale');
    showTrace(next, isFromStart);
    document.body.dataset.ready = 'true';
    if (plays) setPlaying(true);
    await compare(signal);
  } catch (error) {
    if (signal.aborted) return;
    setPlaying(false);
    if (isFromStart) showTrace(chosen.story.traces[chosen.fence] ?? Object.values(chosen.story.traces)[0], true);
    refusal.replaceChildren(...wordsOf(/** @type {Error} */ (error)), ' The picture shows other settings.');
    refusal.hidden = false;
    byId('player').classList.add('stale');
  }
}

/** Why these settings can't be played. @param {Error} error @returns {(string|Node)[]} */
function wordsOf(error) {
  if (error instanceof Unidentified) {
    const link = html('a', '', 'sign in at the console');
    link.setAttribute('href', './');
    return ['This node asks who calls: ', link, ', in this tab.'];
  }
  // The node marks names by backticks.
  return ['These settings can’t be played: ', ...error.message.split('`').map((part, i) => (i % 2 ? html('code', '', part) : part)), '.'];
}

/** Fills the table of how the same settings end with each fence. @param {AbortSignal} signal */
async function compare(signal) {
  const fits = fittingFences();
  const traces = await Promise.all(FENCES.map(({ name }) => (fits.includes(name) ? traceOf(name, signal).catch(() => null) : null)));
  if (signal.aborted) return;
  byId('compared').replaceChildren(...FENCES.map(({ name, title }, i) => {
    const head = html('th', '', title), outcome = traces[i]?.outcome;
    head.setAttribute('scope', 'row');
    const row = html('tr', `verdict-${outcome?.verdict}`, head, outcome ? html('td', '', html('b', '', VERDICTS[outcome.verdict]), `: ${outcome.text}`) : html('td', 'dim', fits.includes(name) ? 'the node does not answer' : 'no tokens to check'));
    const button = html('button', '', 'Play');
    button.setAttribute('type', 'button');
    button.setAttribute('aria-label', `Play with this fence: ${title}`);
    button.addEventListener('click', () => chooseFence(name, { isFromStart: true, plays: true }));
    row.append(html('td', '', ...(outcome ? [button] : [])));
    if (name === chosen.fence) row.setAttribute('aria-current', 'true');
    return row;
  }));
}

/** @param {string} fence @param {{isFromStart?: boolean, plays?: boolean}} [how] */
function chooseFence(fence, how) {
  chosen.fence = fence;
  showForm();
  return load(how);
}

/** Chooses what the address says: `#story=…&fence=…&pause-for=5000ms`. */
function followAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  const story = stories.find(({ name }) => name === query.get('story')) ?? stories[0];
  Object.assign(chosen, { story, fence: story.fence, changed: new Map() });
  if (!recorded) for (const [key, value] of query) change(key, value);
  const fence = query.get('fence') ?? '';
  if (fittingFences().includes(fence)) chosen.fence = fence;
  byId('title').textContent = story.title;
  document.title = `${story.title} – Why locks need fences`;
  byId('about').textContent = story.about;
  for (const link of byId('stories').querySelectorAll('a')) {
    link.removeAttribute('aria-current');
    if (link.dataset.storyLink !== story.name) continue;
    link.setAttribute('aria-current', 'page');
    // On a narrow page the stories are one row that scrolls.
    const list = byId('stories');
    list.scrollLeft += link.getBoundingClientRect().left - list.getBoundingClientRect().left - 12;
  }
  setPlaying(false);
  drawForm();
  return load({ isFromStart: true });
}

/** Keys of the whole page, where no control needs them itself. @param {KeyboardEvent} event */
function onKey(event) {
  const on = /** @type {HTMLElement} */ (event.target);
  if (event.altKey || event.ctrlKey || event.metaKey || on.matches('input:not(#scrubber), select, textarea')) return;
  if (event.key === ' ' && on.closest('button, a, summary')) return;
  /** @type {Record<string, () => void>} */
  const keys = { ' ': togglePlaying, ArrowLeft: () => stopBeside(-1), ArrowRight: () => stopBeside(1), Home: () => stopAt(-1), End: () => stopAt(Infinity) };
  // Up and down scroll the page, except where they move along steps.
  if (on.closest('#scrubber, #steps')) Object.assign(keys, { ArrowUp: keys.ArrowLeft, ArrowDown: keys.ArrowRight });
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

/** Connects the controls. */
function listen() {
  // The address keeps what is chosen, so the link only moves the focus.
  byId('skip').addEventListener('click', (/** @type {Event} */ event) => {
    event.preventDefault();
    byId('content').focus();
  });
  byId('play').addEventListener('click', togglePlaying);
  byId('step-back').addEventListener('click', () => stopBeside(-1));
  byId('step-forward').addEventListener('click', () => stopBeside(1));
  byId('to-start').addEventListener('click', () => stopAt(-1));
  byId('to-end').addEventListener('click', () => stopAt(Infinity));
  byId('scrubber').addEventListener('input', (/** @type {any} */ event) => scrub(Number(event.target.value)));
  byId('scroll').addEventListener('click', seek);
  byId('scroll').addEventListener('pointermove', (/** @type {PointerEvent} */ event) => { if (event.buttons === 1 && event.pointerType === 'mouse') seek(event); });
  byId('steps').addEventListener('click', (/** @type {any} */ event) => {
    const item = event.target.closest('[data-step-index]');
    if (item) stopAt(Number(item.dataset.stepIndex));
  });
  byId('settings').addEventListener('input', (/** @type {any} */ event) => {
    if (!takeInput(event.target)) return;
    clearTimeout(timer);
    timer = window.setTimeout(() => load(), 200);
  });
  byId('settings').addEventListener('submit', (/** @type {Event} */ event) => event.preventDefault());
  byId('reset').addEventListener('click', () => {
    chosen.changed.clear();
    if (!fittingFences().includes(chosen.fence)) chosen.fence = chosen.story.fence;
    showForm();
    load();
    // The button is disabled now, and would take the focus with it.
    byId('first-fields').querySelector('select, input').focus();
  });
  byId('segments').addEventListener('change', (/** @type {any} */ event) => chooseFence(event.target.value));
  document.addEventListener('keydown', onKey);
  addEventListener('hashchange', followAddress);
  // Back from the console, where somebody may have signed in.
  addEventListener('pageshow', ({ persisted }) => { if (persisted && !byId('refusal').hidden) load(); });
  let width = 0;
  new ResizeObserver(() => {
    const now = byId('scroll').clientWidth;
    if (now !== width) draw();
    width = now;
  }).observe(byId('scroll'));
}

/** Gets the stories, and shows the first, or the one in the address. */
async function start() {
  if (!recorded) for (const link of [byId('home'), byId('to-console')]) link.href = './';
  byId('to-console').hidden = recorded !== null;
  try {
    stories = recorded ? JSON.parse(recorded.textContent ?? '') : await answerOf('hazard/stories');
  } catch (error) {
    byId('problem').textContent = `The stories can’t be loaded: ${/** @type {Error} */ (error).message}. Load the page again.`;
    byId('problem').hidden = false;
    return;
  }
  byId('static').hidden = recorded === null;
  byId('stories').replaceChildren(...stories.map(({ name, title }) => {
    const link = html('a', '', title);
    link.setAttribute('href', `#story=${name}`);
    link.dataset.storyLink = name;
    return html('li', '', link);
  }));
  byId('segments').replaceChildren(...FENCES.map(({ name, title }) => {
    const radio = Object.assign(document.createElement('input'), { type: 'radio', name: 'fence', value: name, id: `fence-${name}` });
    return html('label', '', radio, title);
  }));
  drawLegend();
  listen();
  await followAddress();
}

start();
