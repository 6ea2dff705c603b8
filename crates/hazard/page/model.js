// @ts-check
// What a trace says: pure functions of the crate `hazard`'s traces, and small helpers. The page's scripts import each other
// in the order model, picture, player, settings, hazard. In the single file they are one module in this order, so each
// import is one line, and their names differ. Times are in milliseconds of the play.

/** @typedef {'a'|'b'|'c'|'locks'|'resource'} Lane */
/** @typedef {'asks'|'waits'|'holds'|'releases'|'done'|'gave-up'|'dead'} Phase what a client's program does */
/** @typedef {{balance: number, highest: number|null, highest_writer: number|null}} Account */
/** @typedef {{at_ms: number, lane: Lane, kind: 'ordinary'|'fault'|'granted'|'ended'|'refused'|'damage', text: string, token?: number, phase?: Phase, account?: Account}} Step */
/** @typedef {{from: Lane, to: Lane, sent_ms: number, arrives_ms: number, text: string, kind: 'session'|'lock'|'read'|'write'|'answer'}} Message */
/** @typedef {{lane: Lane, kind: 'believes'|'waits'|'held'|'closed'|'paused'|'dead'|'cut', from_ms: number, to_ms: number, token?: number, holder?: Lane}} Span */
/** @typedef {{verdict: 'kept'|'lost'|'torn', balance: number, expected: number, refused: number, text: string}} Outcome */
/** @typedef {{settings: Record<string, any>, steps: Step[], messages: Message[], spans: Span[], outcome: Outcome, end_ms: number}} Trace */
/** @typedef {{name: string, title: string, about: string, fence: string, traces: Record<string, Trace>}} Story */
/** @typedef {{lane: Lane, from: number, to: number}} Interval */

/** @type {Record<Lane, string>} */
export const NAMES = { a: 'A', b: 'B', c: 'C', locks: 'Lock service', resource: 'Account' };
export const VERDICTS = { kept: 'kept', lost: 'LOST', torn: 'TORN' };
export const SIGNS = { ordinary: '', granted: '', ended: '', fault: '◆ ', refused: '⊘ ', damage: '▲ ' };
export const FENCES = [
  { name: 'none', title: 'Nothing', about: 'No fence: the account takes every write, whoever sends it.' },
  { name: 'write', title: 'Writes only', about: 'The account refuses a write whose token is older than the newest that has written.' },
  { name: 'enter', title: 'Enter', about: 'Each client shows its token before it reads (enter). From then on the account refuses every older one.' },
];
/** @type {Record<Phase, string>} */
const PHASES = { asks: 'asks for the lock', waits: 'waits for the lock', holds: 'believes: “I hold it”', releases: 'releases the lock', done: 'is done', 'gave-up': 'has given up', dead: 'its process is dead' };
/** A message that takes longer than this is drawn as late; an ordinary one takes 200 ms. */
export const LATE_MS = 1000;
/** Play runs faster through gaps between steps that are longer than this. */
export const QUIET_MS = 2000;

// Small helpers.

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);
/** An HTML element with a class and children; strings become text. @param {string} tag @param {string} [name] @param {...(Node|string)} children */
export function html(tag, name = '', ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
}
/** An SVG element. @param {string} tag @param {Record<string, string|number>} attributes @param {...(Node|string)} children @returns {any} */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, typeof value === 'number' ? String(Math.round(value * 10) / 10) : value);
  element.append(...children);
  return element;
}
/** @param {number} ms */
export const seconds = (ms) => `${Math.round(ms) / 1000} s`;
/** The longest of the texts that fits. @param {string[]} texts from long to short @param {number} width in pixels */
export const fitting = (texts, width) => texts.find((text) => text.length * 6.3 + 10 <= width) ?? '';
/** @param {Trace} trace @returns {Lane[]} */
export const clientsOf = (trace) => (trace.settings.others === 'readers' ? ['a', 'b', 'c'] : ['a', 'b']);

// What holds at a time.

/** When the client gives the hold back: from then on it relies on it no more, though the answer is still on its way. @param {Trace} trace @param {Span} belief */
export function reliesUntil(trace, belief) {
  const release = trace.steps.find((step) => step.lane === belief.lane && step.phase === 'releases' && step.at_ms > belief.from_ms && step.at_ms < belief.to_ms);
  return release ? release.at_ms : belief.to_ms;
}

/** The times in which a client believes that it holds the lock, and does not. @param {Trace} trace @returns {Interval[]} */
export function wrongBeliefs(trace) {
  const found = [];
  for (const belief of trace.spans.filter((span) => span.kind === 'believes')) {
    const holds = trace.spans.filter((span) => span.kind === 'held' && span.holder === belief.lane && span.from_ms <= belief.from_ms);
    const from = Math.max(belief.from_ms, ...holds.map((span) => span.to_ms));
    const to = reliesUntil(trace, belief);
    if (from < to) found.push({ lane: belief.lane, from, to });
  }
  return found;
}

/** The times in which one client believes that it holds the lock, and the lock service counts others. @param {Trace} trace */
export function conflicts(trace) {
  const areReaders = (/** @type {Lane} */ lane) => trace.settings.others === 'readers' && lane !== 'a';
  /** @type {(Interval & {holders: Lane[]})[]} */
  const found = [];
  for (const wrong of wrongBeliefs(trace)) {
    for (const held of trace.spans.filter((span) => span.kind === 'held')) {
      const holder = /** @type {Lane} */ (held.holder);
      const [from, to] = [Math.max(wrong.from, held.from_ms), Math.min(wrong.to, held.to_ms)];
      if (from >= to || holder === wrong.lane || (areReaders(holder) && areReaders(wrong.lane))) continue;
      const same = found.find((other) => other.lane === wrong.lane && other.from === from && other.to === to);
      if (same) same.holders.push(holder);
      else found.push({ lane: wrong.lane, from, to, holders: [holder] });
    }
  }
  return found;
}

/** The account after the first `count` steps. @param {Trace} trace @param {number} count @returns {Account} */
export function accountAfter(trace, count) {
  for (let index = count - 1; index >= 0; index--) {
    const { account } = trace.steps[index];
    if (account) return account;
  }
  return { balance: 100, highest: null, highest_writer: null };
}

/** @param {string} by whose @param {number} [token] */
export const withToken = (by, token) => (token === undefined ? by : `${by}, token ${token}`);

/** What the lock service counts. @param {Trace} trace @param {Span[]} active */
function locksState(trace, active) {
  const held = active.filter((span) => span.lane === 'locks' && span.kind === 'held');
  const closed = active.find((span) => span.kind === 'closed');
  const isRedlock = trace.settings.service === 'redlock';
  if (held.length) {
    const holders = held.map((span) => withToken(NAMES[/** @type {Lane} */ (span.holder)], span.token));
    return { main: `${held.map((span) => NAMES[/** @type {Lane} */ (span.holder)]).join(' and ')} ${held.length > 1 ? 'hold' : 'holds'} it`, extra: isRedlock ? 'its key is on three of five servers' : held.length > 1 ? holders.join('; ') : `token ${held[0].token}` };
  }
  return closed ? { main: 'closed', extra: 'lock-delay: the holder is gone, its messages may still arrive' } : { main: 'free', extra: '' };
}

/** What a client believes and does. @param {Trace} trace @param {Lane} lane @param {Span[]} active @param {number} index @param {number} time */
function clientState(trace, lane, active, index, time) {
  const of = (/** @type {string} */ kind) => active.find((span) => span.lane === lane && span.kind === kind);
  const { phase } = trace.steps.slice(0, index + 1).filter((step) => step.lane === lane && step.phase).at(-1) ?? {};
  const belief = of('believes');
  const state = { main: phase ? PHASES[phase] : 'has not begun', extra: '', wrong: '', fault: '' };
  if (phase === 'holds' && belief) state.extra = belief.token === undefined ? 'there is no token' : `token ${belief.token}`;
  else if (!belief && (phase === 'holds' || phase === 'releases')) state.main = 'knows that it lost the lock';
  if (of('paused')) state.fault = 'stands still';
  if (of('cut')) state.fault += `${state.fault ? '; ' : ''}cut off from the lock service`;
  const write = trace.messages.find((m) => m.from === lane && m.kind === 'write' && m.sent_ms <= time && time < m.arrives_ms);
  if (write) state.extra += `${state.extra ? '; ' : ''}on its way: ${write.text}`;
  if (wrongBeliefs(trace).some((wrong) => wrong.lane === lane && wrong.from <= time && (time < wrong.to || (time === wrong.to && belief && phase === 'holds')))) {
    const others = active.filter((span) => span.kind === 'held' && span.holder !== lane);
    const holders = others.map((span) => NAMES[/** @type {Lane} */ (span.holder)] + (span.token ? ` (token ${span.token})` : ''));
    state.wrong = `Wrong: ${holders.length ? `${holders.join(' and ')} ${holders.length > 1 ? 'hold' : 'holds'} it` : 'its hold is over'}`;
  }
  return state;
}

/** The states of all lanes after step `index`, at `time`. @param {Trace} trace @param {number} index @param {number} time */
export function stateAt(trace, index, time) {
  // A belief ends with the step that says so, which may come after others of the same time.
  const isEndOf = (/** @type {Span} */ { lane, to_ms }, /** @type {Step} */ step) => step.lane === lane && step.at_ms === to_ms && (/ended|refused/.test(step.kind) || /done|gave-up|dead/.test(step.phase ?? ''));
  const lasts = (/** @type {Span} */ span) => (span.kind === 'believes' ? !trace.steps.slice(0, index + 1).some((step) => isEndOf(span, step)) : span.kind !== 'waits' && span.to_ms === trace.end_ms);
  const active = trace.spans.filter((span) => span.from_ms <= time && (time < span.to_ms || (time === span.to_ms && lasts(span))));
  const account = accountAfter(trace, index + 1);
  const mark = account.highest === null ? 'the fence has seen no token yet' : `the fence’s mark: ${account.highest}`;
  const writers = account.highest !== account.highest_writer ? `; of writers: ${account.highest_writer ?? 'none'}` : '';
  const extra = trace.settings.fence === 'none' ? 'no fence: it checks no token' : mark + writers;
  const nothing = { extra: '', wrong: '', fault: '' };
  const last = trace.steps[index];
  return [
    { lane: /** @type {Lane} */ ('locks'), ...nothing, ...locksState(trace, active) },
    ...clientsOf(trace).map((lane) => ({ lane, ...clientState(trace, lane, active, index, time) })),
    { lane: /** @type {Lane} */ ('resource'), ...nothing, main: `balance ${account.balance}`, extra, wrong: last?.lane === 'resource' && last.kind === 'damage' ? last.text.replace(/^.*: /, '') : '' },
  ];
}
