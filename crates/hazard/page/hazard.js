// @ts-check
// The hazard player: shows a trace of the crate `hazard` as a timeline, and plays it step by step. Reading order: the
// types, `stateAt` (what holds at a time), the picture, the player, the settings. Times are in milliseconds of the play.

/** @typedef {'a'|'b'|'c'|'locks'|'resource'} Lane */
/** @typedef {{balance: number, highest: number|null, highest_writer: number|null}} Account */
/** @typedef {{at_ms: number, lane: Lane, kind: 'ordinary'|'fault'|'granted'|'ended'|'refused'|'damage', text: string, token?: number, account?: Account}} Step */
/** @typedef {{from: Lane, to: Lane, sent_ms: number, arrives_ms: number, text: string, is_background: boolean}} Message */
/** @typedef {{lane: Lane, kind: 'believes'|'waits'|'held'|'closed'|'paused'|'dead'|'cut', from_ms: number, to_ms: number, token?: number, holder?: Lane}} Span */
/** @typedef {{verdict: 'kept'|'lost'|'torn', balance: number, expected: number, refused: number, text: string}} Outcome */
/** @typedef {{settings: Record<string, any>, steps: Step[], messages: Message[], spans: Span[], outcome: Outcome, end_ms: number}} Trace */
/** @typedef {{name: string, title: string, about: string, fence: string, traces: Record<string, Trace>}} Story */
/** @typedef {{lane: Lane, from: number, to: number}} Interval */

/** @type {Record<Lane, string>} */
const NAMES = { a: 'A', b: 'B', c: 'C', locks: 'Lock service', resource: 'Account' };
const VERDICTS = { kept: 'kept', lost: 'LOST', torn: 'TORN' };
const SIGNS = { ordinary: '', granted: '', ended: '', fault: '◆ ', refused: '⊘ ', damage: '▲ ' };
const FENCES = [
  { name: 'none', title: 'Nothing', about: 'No fence: the account takes every write, whoever sends it.' },
  { name: 'write', title: 'Writes only', about: 'The account refuses a write whose token is older than the newest that has written.' },
  { name: 'enter', title: 'Enter', about: 'Each client shows its token before it reads (enter). From then on the account refuses every older one.' },
];
/** A message that takes longer than this is drawn as late; an ordinary one takes 200 ms. */
const LATE_MS = 1000;
/** Play runs faster through gaps between steps that are longer than this. */
const QUIET_MS = 2000;

// Small helpers.

/** @param {string} id @returns {any} */
const byId = (id) => document.getElementById(id);
/** An HTML element with a class and children; strings become text. @param {string} tag @param {string} [name] @param {...(Node|string)} children */
function html(tag, name = '', ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
}
/** An SVG element. @param {string} tag @param {Record<string, string|number>} attributes @param {...(Node|string)} children @returns {any} */
function svg(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, typeof value === 'number' ? String(Math.round(value * 10) / 10) : value);
  element.append(...children);
  return element;
}
/** @param {number} ms */
const seconds = (ms) => `${Math.round(ms) / 1000} s`;
/** A step's text without the asterisks that mark a fault in a terminal. @param {Step} step */
const textOf = (step) => step.text.replace(/^\*\* /, '');
/** The longest of the texts that fits. @param {string[]} texts from long to short @param {number} width in pixels */
const fitting = (texts, width) => texts.find((text) => text.length * 6.3 + 10 <= width) ?? '';
/** @param {Trace} trace @returns {Lane[]} */
const clientsOf = (trace) => (trace.settings.others === 'readers' ? ['a', 'b', 'c'] : ['a', 'b']);

// What holds at a time.

/** When the client gives the hold back: from then on it relies on it no more, though the answer is still on its way. @param {Trace} trace @param {Span} belief */
function reliesUntil(trace, belief) {
  const release = trace.steps.find((step) => step.lane === belief.lane && step.text === 'releases the lock' && step.at_ms > belief.from_ms && step.at_ms < belief.to_ms);
  return release ? release.at_ms : belief.to_ms;
}

/** The times in which a client believes that it holds the lock, and does not. @param {Trace} trace @returns {Interval[]} */
function wrongBeliefs(trace) {
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
function conflicts(trace) {
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
function accountAfter(trace, count) {
  for (let index = count - 1; index >= 0; index--) {
    const { account } = trace.steps[index];
    if (account) return account;
  }
  return { balance: 100, highest: null, highest_writer: null };
}

/** @param {string} by whose @param {number} [token] */
const withToken = (by, token) => (token === undefined ? by : `${by}, token ${token}`);

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
  const last = trace.steps.slice(0, index + 1).filter((step) => step.lane === lane).at(-1);
  const belief = of('believes');
  const state = { main: 'does not hold the lock', extra: '', wrong: '', fault: '' };
  if (of('dead')) state.main = 'its process is dead';
  else if (belief && time >= reliesUntil(trace, belief) && time < belief.to_ms) state.main = 'releases the lock';
  else if (belief) Object.assign(state, { main: 'believes: “I hold it”', extra: belief.token === undefined ? 'there is no token' : `token ${belief.token}` });
  else if (of('waits')) state.main = 'waits for the lock';
  else if (!last) state.main = 'has not begun';
  else if (last.text === 'wants the lock') state.main = 'asks for the lock';
  else if (/^is done|^gives up/.test(last.text)) state.main = last.text;
  else if (last.kind === 'ended') state.main = 'knows that it lost the lock';
  if (of('paused')) state.fault = 'stands still';
  if (of('cut')) state.fault += `${state.fault ? '; ' : ''}cut off from the lock service`;
  const write = trace.messages.find((m) => m.from === lane && m.text.startsWith('write') && m.sent_ms <= time && time < m.arrives_ms);
  if (write) state.extra += `${state.extra ? '; ' : ''}on its way: ${write.text}`;
  if (wrongBeliefs(trace).some((wrong) => wrong.lane === lane && wrong.from <= time && (time < wrong.to || (time === wrong.to && belief?.to_ms === time)))) {
    const others = active.filter((span) => span.kind === 'held' && span.holder !== lane);
    const holders = others.map((span) => NAMES[/** @type {Lane} */ (span.holder)] + (span.token ? ` (token ${span.token})` : ''));
    state.wrong = `Wrong: ${holders.length ? `${holders.join(' and ')} ${holders.length > 1 ? 'hold' : 'holds'} it` : 'its hold is over'}`;
  }
  return state;
}

/** The states of all lanes after step `index`, at `time`. @param {Trace} trace @param {number} index @param {number} time */
function stateAt(trace, index, time) {
  const lasts = (/** @type {Span} */ span) => span.to_ms === trace.end_ms && span.kind !== 'believes' && span.kind !== 'waits';
  // A belief ends with the step that says so, which may come after others of the same time.
  const endsLater = (/** @type {Span} */ span) => span.kind === 'believes' && span.to_ms === time && trace.steps.some((step, i) => i > index && step.at_ms === time && step.lane === span.lane && step.kind === 'ended');
  const active = trace.spans.filter((span) => span.from_ms <= time && (time < span.to_ms || lasts(span) || endsLater(span)));
  const account = accountAfter(trace, index + 1);
  const mark = account.highest === null ? 'the fence has seen no token yet' : `the fence’s mark: ${account.highest}`;
  const writers = account.highest !== account.highest_writer ? `; of writers: ${account.highest_writer ?? 'none'}` : '';
  const extra = trace.settings.fence === 'none' ? 'no fence: it checks no token' : mark + writers;
  const nothing = { extra: '', wrong: '', fault: '' };
  const last = trace.steps[index];
  return [
    { lane: /** @type {Lane} */ ('locks'), ...nothing, ...locksState(trace, active) },
    ...clientsOf(trace).map((lane) => ({ lane, ...clientState(trace, lane, active, index, time) })),
    { lane: /** @type {Lane} */ ('resource'), ...nothing, main: `balance ${account.balance}`, extra, wrong: last?.lane === 'resource' && last.kind === 'damage' ? textOf(last).replace(/^.*: /, '') : '' },
  ];
}

// The picture.

/** A time axis that shortens quiet stretches: linear between two events, and a gap's width grows with the root of its length.
 * @param {Trace} trace @param {number} width to fill, in pixels */
function scaleOf(trace, width) {
  const left = 14, right = 64;
  const shown = trace.messages.filter((m) => !m.is_background);
  const all = [0, trace.end_ms, ...trace.steps.map((s) => s.at_ms), ...trace.spans.flatMap((s) => [s.from_ms, s.to_ms]), ...shown.flatMap((m) => [m.sent_ms, m.arrives_ms])];
  const times = [...new Set(all.filter((t) => t <= trace.end_ms))].sort((a, b) => a - b);
  const widths = times.slice(1).map((t, i) => Math.max(9, Math.min(300, 60 * Math.sqrt((t - times[i]) / 1000))));
  const sum = widths.reduce((a, b) => a + b, 0) || 1;
  const stretch = Math.max(0.72, Math.min(2.5, (width - left - right) / sum));
  const xs = [left];
  for (const w of widths) xs.push(/** @type {number} */ (xs.at(-1)) + w * stretch);
  const between = (/** @type {number} */ v, /** @type {number[]} */ from, /** @type {number[]} */ to) => {
    let i = from.findIndex((other) => other > v);
    if (i < 0) return /** @type {number} */ (to.at(-1));
    i = Math.max(1, i);
    return Math.max(to[0], to[i - 1] + ((v - from[i - 1]) / (from[i] - from[i - 1])) * (to[i] - to[i - 1]));
  };
  return { times, end: /** @type {number} */ (xs.at(-1)), width: Math.max(width, /** @type {number} */ (xs.at(-1)) + right), x: (/** @type {number} */ t) => between(t, times, xs), t: (/** @type {number} */ x) => between(x, xs, times) };
}

/** Where the lanes and their bars are, in pixels from the top. @param {Trace} trace */
function layoutOf(trace) {
  /** @type {Record<string, {top: number, bar: number, height: number, bottom: number}>} */
  const lanes = {};
  const hasFaults = trace.spans.some((span) => span.kind === 'paused' || span.kind === 'cut');
  let top = 44;
  const add = (/** @type {Lane} */ lane, /** @type {number} */ bar, /** @type {number} */ height, /** @type {number} */ rest) => {
    lanes[lane] = { top, bar: top + bar, height, bottom: top + bar + height };
    top += bar + height + rest;
  };
  add('locks', 10, trace.settings.others === 'readers' ? 42 : 26, 18);
  for (const lane of clientsOf(trace)) add(lane, 10, 26, lane === 'a' && hasFaults ? 32 : 18);
  add('resource', 32, 26, 28);
  return { lanes, bottom: top };
}

/** Hatches for what must not be told by colour alone. */
function patterns() {
  const hatch = (/** @type {string} */ id, /** @type {number} */ size, /** @type {string} */ under, /** @type {string} */ line, angle = 45) =>
    svg('pattern', { id, width: size, height: size, patternUnits: 'userSpaceOnUse', patternTransform: `rotate(${angle})` }, svg('rect', { width: size, height: size, class: under }), svg('line', { x1: 0, y1: 0, x2: 0, y2: size, class: line }));
  return svg('defs', {}, hatch('paused', 8, 'under-warn', 'hatch-warn'), hatch('cut', 7, 'under-warn', 'hatch-warn', 0), hatch('wrong', 7, 'under-bad', 'hatch-bad', -45), hatch('closed', 7, 'under', 'hatch-dim'));
}

/** A bar with the longest text that fits. @param {string} name classes @param {number} x @param {number} y @param {number} width @param {number} height @param {string[]} texts @param {string} [textName] */
function bar(name, x, y, width, height, texts, textName = '') {
  const group = svg('g', {}, svg('title', {}, texts[0] ?? ''), svg('rect', { x, y, width: Math.max(2, width), height, rx: 3, class: `bar ${name}` }));
  const text = fitting(texts, width);
  if (text) group.append(svg('text', { x: x + 6, y: y + height / 2 + 4.2, class: textName }, text));
  return group;
}

/** The sign of a refusal, a damage or a fault. @param {string} kind @param {number} x @param {number} y */
function sign(kind, x, y) {
  if (kind === 'fault') return svg('path', { class: 'sign-warn', d: `M${x} ${y - 6}l6 6-6 6-6-6z` });
  if (kind === 'refused') return svg('g', {}, svg('circle', { cx: x, cy: y, r: 9, class: 'sign-bad' }), svg('path', { class: 'sign-line', d: `M${x - 4} ${y - 4}l8 8` }));
  return svg('g', {}, svg('path', { class: 'sign-bad', d: `M${x} ${y - 11}l12 20h-24z` }), svg('path', { class: 'sign-line', d: `M${x} ${y - 4}v6m0 4v.1` }));
}

/** @typedef {ReturnType<typeof scaleOf>} Scale */
/** @typedef {ReturnType<typeof layoutOf>} Layout */

/** @param {Trace} trace @param {Scale} scale @param {Layout} layout */
function drawSpans(trace, scale, layout) {
  const group = svg('g', {});
  const wrongs = wrongBeliefs(trace);
  for (const span of trace.spans) {
    const { bar: y, height, bottom } = layout.lanes[span.lane];
    const [x, end] = [scale.x(span.from_ms), scale.x(span.to_ms)];
    const lasts = seconds(span.to_ms - span.from_ms);
    const owner = /** @type {Lane} */ (span.holder ?? span.lane);
    const add = (/** @type {Parameters<typeof bar>} */ ...all) => group.append(svg('g', { class: `of-${owner}` }, bar(...all)));
    if (span.kind === 'believes') {
      const until = reliesUntil(trace, span);
      const wrong = wrongs.find((other) => other.lane === span.lane && other.from >= span.from_ms && other.to <= span.to_ms);
      const right = scale.x(wrong ? wrong.from : until);
      const holds = withToken('“I hold it”', span.token);
      add('', x, y, right - x, height, [`believes: ${holds}`, holds, span.token ? `token ${span.token}` : 'holds', `${span.token ?? ''}`]);
      if (wrong) add('wrong', right, y, scale.x(until) - right, height, [`${withToken('still believes: “I hold it”', span.token)}`, holds, 'wrong'], 'halo wrong-text');
      if (until < span.to_ms) add('open', scale.x(until), y, end - scale.x(until), height, ['releases']);
    } else if (span.kind === 'held') {
      const isShared = trace.settings.others === 'readers' && owner !== 'a';
      const name = withToken(`${NAMES[owner]} holds`, span.token);
      add('solid', x, y + (isShared && owner === 'c' ? height / 2 : 0), end - x, isShared ? height / 2 : height, [name, `${NAMES[owner]} ${span.token ?? ''}`, NAMES[owner]], 'on-solid');
    } else if (span.kind === 'closed') add('closed', x, y, end - x, height, [`closed for ${lasts} (lock-delay)`, 'closed'], 'halo');
    else if (span.kind === 'waits') add('open', x, y, end - x, height, ['waits for the lock', 'waits']);
    else if (span.kind === 'dead') add('dead', x, y, end - x + 40, height, ['dead']);
    else if (span.kind === 'paused') add('paused', x, bottom + 4, end - x, 18, [`stands still for ${lasts}`, lasts], 'halo');
    else add('cut', x, bottom + 4, end - x, 18, [`cut off from the lock service for ${lasts}`, `cut off ${lasts}`, 'cut'], 'halo');
  }
  return group;
}

/** The balance, and beneath it what the fence remembers. @param {Trace} trace @param {Scale} scale @param {Layout} layout */
function drawAccount(trace, scale, layout) {
  const { bar: y, height, bottom } = layout.lanes.resource;
  const group = svg('g', { class: 'of-resource' });
  /** @type {(from: number, account: Account, isDamaged: boolean) => {x: number, account: Account, isDamaged: boolean}} */
  const part = (from, account, isDamaged) => ({ x: scale.x(from), account, isDamaged });
  const changes = [part(0, accountAfter(trace, 0), false), ...trace.steps.flatMap((step) => (step.account ? [part(step.at_ms, step.account, step.kind === 'damage')] : []))];
  const draw = (/** @type {(change: typeof changes[0]) => any} */ value, /** @type {(change: typeof changes[0], x: number, width: number) => void} */ one) => {
    const parts = changes.filter((change, i) => i === 0 || value(change) !== value(changes[i - 1]));
    parts.forEach((change, i) => one(change, change.x, (parts[i + 1]?.x ?? scale.end + 40) - change.x));
  };
  draw((change) => `${change.account.balance} ${change.isDamaged}`, (change, x, width) =>
    group.append(bar(`money ${change.isDamaged ? 'damaged' : ''}`, x, y, width, height, [`balance ${change.account.balance}`, String(change.account.balance)], `strong ${change.isDamaged ? 'wrong-text' : ''}`)));
  if (trace.settings.fence === 'none') group.append(svg('text', { x: scale.x(0) + 6, y: bottom + 17, class: 'small' }, 'no fence: no token is checked'));
  else draw((change) => change.account.highest, ({ account: { highest } }, x, width) => {
    if (highest === null) group.append(svg('text', { x: x + 6, y: bottom + 17, class: 'small' }, fitting(['no mark yet'], width)));
    else group.append(bar('mark', x, bottom + 4, width - 1.5, 18, [`fence’s mark: ${highest}`, `mark ${highest}`, String(highest)]));
  });
  return group;
}

/** @param {Message} message @param {Trace} trace @param {Scale} scale @param {Layout} layout */
function drawMessage(message, trace, scale, layout) {
  const isDown = layout.lanes[message.to].top > layout.lanes[message.from].top;
  const [from, to] = [layout.lanes[message.from], layout.lanes[message.to]];
  const isLate = message.arrives_ms - message.sent_ms > LATE_MS;
  const x1 = scale.x(message.sent_ms), y1 = isDown ? from.bottom : from.bar;
  const x2 = message.arrives_ms > trace.end_ms ? scale.end + 14 : scale.x(message.arrives_ms), y2 = isDown ? to.bar : to.bottom;
  const length = Math.hypot(x2 - x1, y2 - y1) || 1, [dx, dy] = [(x2 - x1) / length, (y2 - y1) / length];
  const head = `M${x2} ${y2}L${x2 - 8 * dx - 3.5 * dy} ${y2 - 8 * dy + 3.5 * dx}L${x2 - 8 * dx + 3.5 * dy} ${y2 - 8 * dy - 3.5 * dx}z`;
  const sender = message.from === 'locks' || message.from === 'resource' ? message.to : message.from;
  const group = svg('g', { class: `message of-${sender}${message.is_background ? ' background' : ''}${isLate ? ' late' : ''}` },
    svg('title', {}, `${NAMES[message.from]} to ${NAMES[message.to]}: ${message.text}`), svg('line', { x1, y1, x2: x2 - 5 * dx, y2: y2 - 5 * dy }), svg('path', { class: 'head', d: head }));
  if (message.text.startsWith('write ')) group.append(svg('text', { x: x2 - 12, y: layout.lanes.resource.top - 5, 'text-anchor': 'end', class: 'always halo' }, message.text));
  else if (!message.is_background && !/^(written|refused)$/.test(message.text)) group.append(svg('text', { x: Math.min(x1, x2) - 5, y: isDown ? y1 + 14 : y2 + 15, 'text-anchor': 'end', class: 'said halo' }, message.text));
  return group;
}

/** The mark of a step on its lane. @param {Step} step @param {Scale} scale @param {Layout} layout */
function drawStep(step, scale, layout) {
  const lane = layout.lanes[step.lane], x = scale.x(step.at_ms);
  const group = svg('g', { class: `of-${step.lane}` }, svg('title', {}, `${seconds(step.at_ms)}, ${NAMES[step.lane]}: ${textOf(step)}`));
  const isSign = step.kind === 'refused' || step.kind === 'damage';
  group.append(svg('circle', { class: 'dot', cx: x, cy: step.lane === 'resource' ? lane.bar : lane.bottom, r: 3 }));
  if (step.kind === 'fault') group.append(sign('fault', x, lane.bottom));
  if (!isSign) return group;
  const y = step.lane === 'resource' ? lane.top + 18 : lane.bar + 12;
  group.append(sign(step.kind, x, y));
  if (step.lane === 'resource') {
    const isRight = x > scale.width * 0.55;
    group.append(svg('text', { x: x + (isRight ? -17 : 17), y: y + 4, 'text-anchor': isRight ? 'end' : 'start', class: 'halo wrong-text' }, textOf(step).replace(/^.*?: /, step.kind === 'refused' ? 'refused: ' : '')));
  }
  return group;
}

/** The axis, the lanes' lines, and the times with two holders. @param {Trace} trace @param {Scale} scale @param {Layout} layout */
function drawGround(trace, scale, layout) {
  const group = svg('g', {}, svg('line', { x1: 0, x2: scale.width, y1: 24, y2: 24, class: 'axis' }));
  for (const { top } of Object.values(layout.lanes).slice(1)) group.append(svg('line', { x1: 0, x2: scale.width, y1: top, y2: top, class: 'lane-line' }));
  let free = 0;
  const label = (/** @type {string} */ text, /** @type {number} */ x, name = 'small') => {
    const half = text.length * 3.1;
    if (x - half < free) return false;
    group.append(svg('text', { x, y: 16, 'text-anchor': 'middle', class: name }, text));
    free = x + half + 9;
    return true;
  };
  scale.times.forEach((time, i) => {
    const x = scale.x(time), gap = time - (scale.times[i - 1] ?? time);
    if (gap >= QUIET_MS && x - scale.x(time - gap) > 130) label(`· · ·  ${seconds(gap)}  · · ·`, scale.x(time - gap / 2));
    if (label(time === 0 ? '0 s' : seconds(time), x)) group.append(svg('line', { x1: x, x2: x, y1: 20, y2: layout.bottom, class: 'grid-line' }));
  });
  for (const { lane, from, to, holders } of conflicts(trace)) {
    const x = scale.x(from), width = scale.x(to) - x, lowest = Math.max(...[lane, ...holders].map((each) => layout.lanes[each].bottom + (each === 'a' ? 22 : 0)));
    const count = ['two', 'three'][holders.length - 1], names = holders.map((holder) => NAMES[holder]).join(' and ');
    const text = fitting([`${count} at once: ${names} by the lock service, ${NAMES[lane]} by its own belief`, `${count} at once: ${[lane, ...holders.slice(0, -1)].map((each) => NAMES[each]).join(', ')} and ${NAMES[holders[holders.length - 1]]}`, `${count} at once`], width + 30);
    group.append(svg('rect', { x, width, y: 28, height: lowest - 24, class: 'band' }), svg('path', { d: `M${x} 48v-6h${width}v6`, class: 'band-edge' }),
      svg('text', { x: x + width / 2, y: 38, 'text-anchor': 'middle', class: 'halo wrong-text' }, text));
  }
  return group;
}

/** The whole picture. @param {Trace} trace @param {number} width available, in pixels */
function drawPicture(trace, width) {
  const layout = layoutOf(trace), scale = scaleOf(trace, width);
  const messages = trace.messages.filter((m) => m.sent_ms <= trace.end_ms && !(m.is_background && m.arrives_ms > trace.end_ms)).map((message) => ({ message, element: drawMessage(message, trace, scale, layout) }));
  const steps = trace.steps.map((step) => drawStep(step, scale, layout));
  // The texts of the bars are above the messages that cross them.
  const spans = drawSpans(trace, scale, layout), texts = svg('g', { class: 'texts' }, ...spans.querySelectorAll('text'));
  const byImportance = [...messages].sort((a, b) => Number(b.message.is_background) - Number(a.message.is_background));
  const veil = svg('rect', { y: 0, height: layout.bottom, class: 'veil' });
  const cursor = svg('g', {}, svg('line', { y1: 20, y2: layout.bottom, class: 'cursor' }), svg('path', { d: 'M-5 18h10l-5 7z', class: 'cursor-head' }));
  const root = svg('svg', { width: scale.width, height: layout.bottom, role: 'img', 'aria-label': 'Timeline of the play; the list of steps says the same in words' },
    patterns(), drawGround(trace, scale, layout), spans, drawAccount(trace, scale, layout), ...byImportance.map(({ element }) => element), texts, ...steps, veil, cursor);
  return { root, layout, scale, messages, steps, veil, cursor };
}

/** The lanes' names, at the left of the picture. @param {Trace} trace @param {Layout} layout */
function drawNames(trace, layout) {
  const { settings } = trace, isWriter = settings.others === 'writer';
  const drift = settings.drift_percent ? `, clock ${settings.drift_percent > 0 ? '+' : '−'}${Math.abs(settings.drift_percent)} %` : '';
  /** @type {Record<string, string>} */
  const notes = { locks: `lease ${seconds(settings.ttl_ms)}`, a: `withdraws 30${drift}`, b: isWriter ? 'withdraws 50' : 'reads twice', c: 'reads twice', resource: '' };
  byId('lanes').style.height = `${layout.bottom}px`;
  byId('lanes').replaceChildren(...Object.entries(layout.lanes).map(([lane, { bar }]) => {
    const name = html('div', `of-${lane}`, lane === 'locks' && settings.service === 'redlock' ? 'Redlock' : NAMES[/** @type {Lane} */ (lane)], html('small', '', notes[lane]));
    name.style.top = `${bar - 4}px`;
    return name;
  }));
}

// The player.

/** @type {Trace|null} */ let trace = null;
/** @type {ReturnType<typeof drawPicture>|null} */ let picture = null;
/** The current step, -1 before the first, and the time of the cursor. */
const position = { index: -1, time: 0 };
let isPlaying = false;
/** The messages on their way at the cursor. @type {Set<Element>} */ let active = new Set();
/** The words last shown, to leave the page alone while they stay the same. */
let shownWords = '';
const isStill = matchMedia('(prefers-reduced-motion: reduce)');

/** @param {Trace} of @param {number} time */
const indexAt = (of, time) => of.steps.filter((step) => step.at_ms <= time).length - 1;

/** Moves to a step; -1 is the start. @param {number} index */
function toStep(index) {
  if (!trace) return;
  position.index = Math.max(-1, Math.min(trace.steps.length - 1, index));
  const isLast = position.index === trace.steps.length - 1;
  position.time = position.index < 0 ? 0 : isLast ? trace.end_ms : trace.steps[position.index].at_ms;
  show();
}

/** Moves to a time. @param {number} time */
function toTime(time) {
  if (!trace) return;
  position.time = Math.max(0, Math.min(trace.end_ms, time));
  position.index = position.time === 0 ? -1 : indexAt(trace, position.time);
  show();
}

/** @param {boolean} plays */
function setPlaying(plays) {
  if (plays && trace && position.time >= trace.end_ms) toStep(-1);
  const hasBegun = plays && !isPlaying;
  isPlaying = plays;
  byId('play-word').textContent = plays ? 'Pause' : 'Play';
  byId('play-icon').setAttribute('d', plays ? 'M5 3v10M11 3v10' : 'M5 3v10l8-5z');
  if (hasBegun) isStill.matches ? playJumping() : requestAnimationFrame((now) => playSmoothly(now, now));
}

/** Moves the cursor on by the time since the last frame. @param {number} now @param {number} before both in milliseconds of the page */
function playSmoothly(now, before) {
  if (!isPlaying || !trace) return;
  const next = trace.steps[position.index + 1]?.at_ms ?? trace.end_ms, last = trace.steps[position.index]?.at_ms ?? 0;
  const rate = Number(byId('speed').value) * Math.max(1, (next - last) / QUIET_MS);
  toTime(position.time + Math.min(100, now - before) * rate);
  if (position.time >= trace.end_ms) return setPlaying(false);
  requestAnimationFrame((then) => playSmoothly(then, now));
}

/** Plays without motion: from step to step. */
function playJumping() {
  if (!isPlaying || !trace) return;
  toStep(position.index + 1);
  if (position.index >= trace.steps.length - 1) return setPlaying(false);
  const gap = trace.steps[position.index + 1].at_ms - trace.steps[position.index].at_ms;
  setTimeout(playJumping, Math.max(500, Math.min(QUIET_MS, gap)) / Number(byId('speed').value));
}

/** Shows the position: in the picture, in words, in the list. */
function show() {
  if (!trace || !picture) return;
  const { index, time } = position, x = picture.scale.x(time);
  picture.veil.setAttribute('x', x);
  picture.veil.setAttribute('width', time >= trace.end_ms ? 0 : picture.scale.width - x);
  picture.cursor.setAttribute('transform', `translate(${x})`);
  const isNow = (/** @type {Message} */ m) => m.sent_ms <= time && (time < m.arrives_ms || m.arrives_ms === time && trace?.steps[index]?.at_ms === time);
  const now = new Set(picture.messages.filter(({ message }) => !message.is_background && isNow(message)).map(({ element }) => element));
  for (const element of active) if (!now.has(element)) element.classList.remove('now');
  for (const element of now) element.classList.add('now');
  active = now;
  followCursor(x);
  const scrubber = byId('scrubber');
  scrubber.value = String(((x - picture.scale.x(0)) / (picture.scale.end - picture.scale.x(0))) * 1000);
  byId('time').textContent = `${(time / 1000).toFixed(1)} of ${(trace.end_ms / 1000).toFixed(1)} s`;
  const states = stateAt(trace, index, time), words = JSON.stringify([index, time >= trace.end_ms, states]);
  if (words === shownWords) return;
  shownWords = words;
  showWords(scrubber, states);
}

/** Keeps the cursor in view if the picture is wider than its box. @param {number} x */
function followCursor(x) {
  const box = byId('scroll');
  if (x < box.scrollLeft + 30 || x > box.scrollLeft + box.clientWidth - 70) box.scrollLeft = x - box.clientWidth * 0.4;
}

/** Shows the current step and the states. @param {HTMLInputElement} scrubber @param {ReturnType<typeof stateAt>} states */
function showWords(scrubber, states) {
  if (!trace || !picture) return;
  const { index, time } = position, step = trace.steps[index];
  document.body.dataset.step = String(index);
  scrubber.setAttribute('aria-valuetext', `${seconds(Math.round(time / 100) * 100)}${step ? `: ${NAMES[step.lane]} ${textOf(step)}` : ''}`);
  for (const mark of picture.root.querySelectorAll('.dot.current')) mark.classList.remove('current');
  picture.steps[index]?.querySelector('.dot').classList.add('current');
  const caption = byId('caption'), isEnd = time >= trace.end_ms && index === trace.steps.length - 1;
  const words = step ? [html('span', 'at num', seconds(step.at_ms)), html('b', '', NAMES[step.lane]), ` ${SIGNS[step.kind]}${textOf(step)}`] : ['Play, or take one step after the other.'];
  const text = words.map((word) => (typeof word === 'string' ? word : word.textContent)).join('');
  // A live region is read whenever its content is replaced, so only when it differs.
  if (caption.textContent !== text) caption.replaceChildren(...words);
  caption.dataset.kind = step?.kind ?? '';
  caption.classList.toggle('hide', isEnd);
  byId('outcome').classList.toggle('hide', !isEnd);
  showList(index);
  byId('state').replaceChildren(...states.map(({ lane, main, extra, wrong, fault }) => {
    const card = html('div', `of-${lane}${wrong ? ' is-wrong' : ''}`, html('dt', '', NAMES[lane]), html('dd', 'main', main));
    if (extra) card.append(html('dd', 'extra', extra));
    if (wrong) card.append(html('dd', 'wrong', wrong));
    if (fault) card.append(html('dd', 'fault', fault));
    return card;
  }));
}

/** @param {number} index of the current step */
function showList(index) {
  const list = byId('steps'), hadFocus = list.contains(document.activeElement);
  [...list.children].forEach((item, i) => {
    const button = item.firstElementChild;
    button.classList.toggle('future', i > index);
    button.tabIndex = i === Math.max(0, index) ? 0 : -1;
    if (i === index) button.setAttribute('aria-current', 'step');
    else button.removeAttribute('aria-current');
  });
  const item = list.children[Math.max(0, index)];
  if (!item) return;
  if (hadFocus) item.firstElementChild.focus({ preventScroll: true });
  if (item.offsetTop < list.scrollTop + 40 || item.offsetTop + item.offsetHeight > list.scrollTop + list.clientHeight - 60) list.scrollTop = item.offsetTop - list.clientHeight / 2;
}

/** Draws the picture for the box's present width. */
function draw() {
  if (!trace) return;
  picture = drawPicture(trace, byId('scroll').clientWidth);
  active = new Set();
  byId('scroll').replaceChildren(picture.root);
  byId('scroll').tabIndex = picture.scale.width > byId('scroll').clientWidth ? 0 : -1;
  drawNames(trace, picture.layout);
  shownWords = '';
  show();
}

/** Who does what, for those who see it for the first time. @param {Trace} trace */
function castOf({ settings }) {
  const isWriter = settings.others === 'writer';
  const what = isWriter ? 'A withdraws 30 and B withdraws 50: if both succeed, 20 must remain.' : 'A withdraws 30. B and C read the balance twice under a shared lock, and must see the same.';
  const token = settings.service === 'redlock' ? '' : ' with a token, a number that rises with every grant';
  return `The account holds 100. ${what} Who writes gets the lock${token}; then it reads the balance, works, and writes the new one.`;
}

/** Shows another trace, at the same place as far as it has it. @param {Trace} next @param {boolean} isFromStart */
function showTrace(next, isFromStart) {
  const wasAtEnd = trace !== null && position.time >= trace.end_ms;
  trace = next;
  if (isFromStart) position.time = 0;
  position.time = wasAtEnd && !isFromStart ? trace.end_ms : Math.min(position.time, trace.end_ms);
  position.index = position.time === 0 ? -1 : indexAt(trace, position.time);
  byId('steps').replaceChildren(...trace.steps.map((step, i) => {
    const button = html('button', '', html('span', 'at', (step.at_ms / 1000).toFixed(3)), html('span', `who of-${step.lane}`, NAMES[step.lane]), html('span', 'what', SIGNS[step.kind] + textOf(step)));
    button.setAttribute('type', 'button');
    const item = html('li', '', button);
    Object.assign(item.dataset, { stepIndex: String(i), kind: step.kind });
    return item;
  }));
  const { verdict, balance, expected, refused, text } = trace.outcome;
  const outcome = byId('outcome');
  outcome.replaceChildren(html('b', '', VERDICTS[verdict]), text[0].toUpperCase() + text.slice(1));
  Object.assign(outcome.dataset, { verdict, balance, expected, refused });
  byId('cast').textContent = castOf(trace);
  Object.assign(document.body.dataset, { fence: trace.settings.fence, steps: String(trace.steps.length) });
  draw();
}

// The settings.

/** @typedef {{key: string, prop: string, label: string, options?: [string, string][], unit?: string, min?: number, max?: number, slider?: number, only?: string}} Field */

/** @param {string} key @param {string} prop @param {string} label @param {number} slider its end, in seconds @param {Partial<Field>} [rest] @returns {Field} */
const timeField = (key, prop, label, slider, rest = {}) => ({ key, prop, label, unit: 's', min: 0, max: 120, slider, ...rest });
/** @type {{title: string, fields: Field[]}[]} */
const GROUPS = [
  { title: 'A stands still', fields: [
    { key: 'pause', prop: 'pause', label: 'Where', options: [['never', 'never'], ['before-read', 'before it reads'], ['before-work', 'before it works'], ['before-check', 'before its lease check'], ['before-write', 'after its lease check']] },
    timeField('pause-for', 'pause_ms', 'For', 30)] },
  { title: 'The network of A', fields: [timeField('write-delay', 'write_delay_ms', 'Its first write is held up for', 30), timeField('cut-at', 'cut_at_ms', 'No lock service from', 30), timeField('cut-for', 'cut_ms', 'Cut off for', 60)] },
  { title: 'The process of A', fields: [{ key: 'crash', prop: 'crash', label: 'Killed after its first write' }, { key: 'drift', prop: 'drift_percent', label: 'Its clock is faster by', unit: '%', min: -50, max: 50, slider: 50 }] },
  { title: 'The lease', fields: [timeField('ttl', 'ttl_ms', 'Time to live (ttl)', 30, { min: 2, max: 60 }), timeField('lock-delay', 'lock_delay_ms', 'Lock-delay after expiry', 30), timeField('linger', 'linger_ms', 'Linger after a lost connection', 30)] },
  { title: 'The programs', fields: [
    { key: 'others', prop: 'others', label: 'A competes with', options: [['writer', 'B, which withdraws 50'], ['readers', 'B and C, which read twice']] }, timeField('work', 'work_ms', 'Work between read and write', 20)] },
  { title: 'The lock service', fields: [
    { key: 'service', prop: 'service', label: 'Which', options: [['lockkeeper', 'Lockkeeper'], ['redlock', 'Redlock on five Redis servers']] },
    timeField('step-at', 'step_at_ms', 'Three clocks jump at', 30, { only: 'redlock' }), timeField('step', 'step_ms', 'Forward by', 60, { only: 'redlock' })] },
];
const FIELDS = new Map(GROUPS.flatMap(({ fields }) => fields.map((field) => [field.key, field])));

/** @type {Story[]} */ let stories = [];
/** What is chosen: a story, a fence, and the settings that differ from the story's own, as the query has them.
 * @type {{story: Story, fence: string, changed: Map<string, string>}} */
let chosen;
const recorded = document.getElementById('recorded');

/** A story's own value of a setting, as the query has it. @param {Story} story @param {Field} field */
function ownValue(story, field) {
  const value = Object.values(story.traces)[0].settings[field.prop];
  return field.unit === 's' ? `${value}ms` : String(value);
}

/** The value in use. @param {string} key */
const valueOf = (key) => chosen.changed.get(key) ?? ownValue(chosen.story, /** @type {Field} */ (FIELDS.get(key)));

/** A query's duration in one spelling: `5s` as `5000ms`; what is no duration stays. @param {string} text */
function inMilliseconds(text) {
  const [, number, unit] = /^([\d.]+)(ms|s|m)$/.exec(text) ?? [];
  return number ? `${Math.round(Number(number) * { ms: 1, s: 1000, m: 60_000 }[/** @type {'ms'|'s'|'m'} */ (unit)])}ms` : text;
}

/** Changes a setting; the story's own value is no change. @param {string} key @param {string} text */
function change(key, text) {
  const field = FIELDS.get(key);
  if (!field) return;
  const value = field.unit === 's' ? inMilliseconds(text) : text;
  if (value === ownValue(chosen.story, field)) chosen.changed.delete(key);
  else chosen.changed.set(key, value);
}

/** The address of what is chosen. @param {string} fence */
const queryOf = (fence) => new URLSearchParams([['story', chosen.story.name], ['fence', fence], ...chosen.changed]).toString();
/** @returns {string[]} the fences that fit: Redlock issues no tokens */
const fittingFences = () => (valueOf('service') === 'redlock' ? ['none'] : FENCES.map(({ name }) => name));

/** @param {Field} field */
function drawField(field) {
  const id = `field-${field.key}`, label = html('label', '', field.label), isTime = field.unit === 's';
  label.setAttribute('for', id);
  const row = html('div', 'field', label);
  row.dataset.field = field.key;
  /** @type {any} */
  const input = html(field.options ? 'select' : 'input');
  Object.assign(input, { id, name: field.key, disabled: recorded !== null });
  for (const [value, text] of field.options ?? []) input.append(new Option(text, value));
  if (!field.options && !field.unit) input.type = 'checkbox';
  if (!field.unit) return row.append(input), row;
  Object.assign(input, { type: 'number', min: field.min, max: field.max, step: isTime ? 0.1 : 1, inputMode: 'decimal' });
  /** @type {any} */
  const slider = html('input');
  Object.assign(slider, { type: 'range', min: field.unit === '%' ? -50 : field.min, max: field.slider, step: isTime ? 0.5 : 1, disabled: recorded !== null });
  slider.dataset.slides = field.key;
  slider.setAttribute('aria-label', `${field.label}, ${isTime ? 'seconds' : 'percent'}`);
  row.append(html('span', 'value', input, html('span', 'unit', field.unit)), slider);
  return row;
}

/** Puts the groups that make the story first, and folds the others. */
function drawForm() {
  const isOfStory = (/** @type {Field} */ field) => !['never', '0ms', '0', 'false', 'writer', 'lockkeeper', '2000ms'].includes(ownValue(chosen.story, field));
  const draw = (/** @type {typeof GROUPS} */ groups) => groups.map(({ title, fields }) => html('fieldset', '', html('legend', '', title), ...fields.map(drawField)));
  const isFirst = (/** @type {typeof GROUPS[0]} */ group) => group.title === 'The lease' || group.fields.some((field) => isOfStory(field));
  byId('first-fields').replaceChildren(...draw(GROUPS.filter(isFirst)));
  byId('more-fields').replaceChildren(...draw(GROUPS.filter((group) => !isFirst(group))));
  showForm();
}

/** Shows the values in the form, except in the control that is being used. */
function showForm() {
  for (const field of FIELDS.values()) {
    const input = byId(`field-${field.key}`), row = input.closest('.field'), value = valueOf(field.key);
    row.hidden = field.only !== undefined && valueOf('service') !== field.only;
    row.classList.toggle('changed', chosen.changed.has(field.key));
    const number = field.unit === 's' ? parseFloat(value) / 1000 : value;
    if (input.type === 'checkbox') input.checked = value === 'true';
    else if (input !== document.activeElement || recorded) input.value = String(number);
    const slider = row.querySelector('[data-slides]');
    if (slider && slider !== document.activeElement) slider.value = String(number);
  }
  byId('reset').disabled = chosen.changed.size === 0;
  const fits = fittingFences();
  for (const { name, about } of FENCES) {
    const radio = byId(`fence-${name}`);
    radio.disabled = !fits.includes(name);
    radio.checked = name === chosen.fence;
    if (radio.checked) byId('fence-about').textContent = fits.length > 1 ? about : 'Redlock issues no tokens, so there is nothing that an account could check.';
  }
}

/** A control of the form has changed. @param {any} input */
function takeInput(input) {
  const key = input.dataset.slides ?? input.name, field = FIELDS.get(key);
  if (!field) return;
  if (field.unit === 's') change(key, `${Math.round(Number(input.value) * 1000)}ms`);
  else change(key, input.type === 'checkbox' ? String(input.checked) : input.value);
  if (key === 'service') {
    if (input.value === 'redlock') chosen.fence = 'none';
    else change('step', '0ms');
  }
  showForm();
  clearTimeout(takeInput.timer);
  takeInput.timer = window.setTimeout(() => load(), 200);
}
takeInput.timer = 0;

// Traces, and the page's address.

/** @type {AbortController|null} */ let loading = null;

/** The answer of the node, or the reason why there is none. @param {string} url @param {AbortSignal} [signal] */
async function answerOf(url, signal) {
  const answer = await fetch(url, { signal, headers: { accept: 'application/json' } });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.detail ?? `the node answers ${answer.status}`);
  return body;
}

/** The trace of the chosen settings with a fence. @param {string} fence @param {AbortSignal} signal @returns {Promise<Trace>} */
async function traceOf(fence, signal) {
  const known = chosen.story.traces[fence];
  return known && chosen.changed.size === 0 ? known : answerOf(`hazard/trace?${queryOf(fence)}`, signal);
}

/** Gets the trace of what is chosen, and shows it. @param {{isFromStart?: boolean, plays?: boolean}} [how] */
async function load({ isFromStart = false, plays = false } = {}) {
  clearTimeout(takeInput.timer);
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
    // The node marks names by backticks.
    const reason = /** @type {Error} */ (error).message.split('`').map((part, i) => (i % 2 ? html('code', '', part) : part));
    refusal.replaceChildren('These settings can’t be played: ', ...reason, '. The picture shows others.');
    refusal.hidden = false;
    byId('player').classList.add('stale');
  }
}

/** Fills the table of how the same settings end with each fence. @param {AbortSignal} signal */
async function compare(signal) {
  const fits = fittingFences();
  const traces = await Promise.all(FENCES.map(({ name }) => (fits.includes(name) ? traceOf(name, signal).catch(() => null) : null)));
  if (signal.aborted) return;
  byId('compared').replaceChildren(...FENCES.map(({ name, title }, i) => {
    const head = html('th', '', title), outcome = traces[i]?.outcome;
    head.setAttribute('scope', 'row');
    const row = html('tr', `verdict-${outcome?.verdict}`, head, outcome ? html('td', '', html('b', '', VERDICTS[outcome.verdict]), `: ${outcome.text}`) : html('td', 'dim', 'no tokens to check'));
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
  chosen = { story, fence: story.fence, changed: new Map() };
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

/** What the bars and signs mean. */
function drawLegend() {
  const of = (/** @type {string} */ text, /** @type {any} */ ...shown) => [html('dt', '', svg('svg', { viewBox: '0 0 46 20', 'aria-hidden': 'true' }, ...shown)), html('dd', '', text)];
  const one = (/** @type {string} */ name) => svg('rect', { x: 1, y: 2, width: 44, height: 16, rx: 3, class: `bar ${name}` });
  const arrow = (/** @type {string} */ name) => svg('g', { class: `message of-a ${name}` }, svg('path', { d: 'M2 3 38 16' }), svg('path', { class: 'head', d: 'M45 18l-9 .6 2.7-6.4z' }));
  byId('legend').replaceChildren(
    ...of('The lock service counts it as held, by the client of that colour', svg('g', { class: 'of-a' }, one('solid'))),
    ...of('The client believes that it holds the lock, and is right', svg('g', { class: 'of-a' }, one(''))),
    ...of('It still believes so, and is wrong', one('wrong')),
    ...of('It stands still, or is cut off', one('paused')),
    ...of('A message; thin ones only keep a session alive', arrow('')),
    ...of('A message that is long on its way', arrow('late')),
    ...of('The fence refuses something', sign('refused', 23, 10)), ...of('Data are damaged', sign('damage', 23, 11)), ...of('A fault begins or ends', sign('fault', 23, 10)),
    ...of('A quiet stretch of time: it is drawn shorter, and played faster', svg('text', { x: 23, y: 12, 'text-anchor': 'middle', class: 'small' }, '· · ·')));
}

/** Keys of the whole page, where no control needs them itself. @param {KeyboardEvent} event */
function onKey(event) {
  const on = /** @type {HTMLElement} */ (event.target);
  if (event.altKey || event.ctrlKey || event.metaKey || on.matches('input:not(#scrubber), select, textarea')) return;
  if (event.key === ' ' && on.closest('button, a, summary')) return;
  /** @type {Record<string, () => void>} */
  const keys = { ' ': () => setPlaying(!isPlaying), ArrowLeft: () => stop(position.index - 1), ArrowRight: () => stop(position.index + 1), Home: () => stop(-1), End: () => stop(Infinity) };
  // Up and down scroll the page, except where they move along steps.
  if (on.closest('#scrubber, #steps')) Object.assign(keys, { ArrowUp: keys.ArrowLeft, ArrowDown: keys.ArrowRight });
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

/** Pauses, and moves to a step. @param {number} index */
function stop(index) {
  setPlaying(false);
  toStep(index);
}

/** Pauses, and moves to where the pointer is. @param {PointerEvent} event */
function seek(event) {
  if (!picture) return;
  setPlaying(false);
  toTime(picture.scale.t(event.clientX - picture.root.getBoundingClientRect().left));
}

/** Connects the controls. */
function listen() {
  // The address keeps what is chosen, so the link only moves the focus.
  byId('skip').addEventListener('click', (/** @type {Event} */ event) => {
    event.preventDefault();
    byId('content').focus();
  });
  byId('play').addEventListener('click', () => setPlaying(!isPlaying));
  byId('step-back').addEventListener('click', () => stop(position.index - 1));
  byId('step-forward').addEventListener('click', () => stop(position.index + 1));
  byId('to-start').addEventListener('click', () => stop(-1));
  byId('to-end').addEventListener('click', () => stop(Infinity));
  byId('scrubber').addEventListener('input', (/** @type {any} */ event) => {
    if (!picture) return;
    setPlaying(false);
    const { scale } = picture;
    toTime(scale.t(scale.x(0) + (Number(event.target.value) / 1000) * (scale.end - scale.x(0))));
  });
  byId('scroll').addEventListener('click', seek);
  byId('scroll').addEventListener('pointermove', (/** @type {PointerEvent} */ event) => { if (event.buttons === 1 && event.pointerType === 'mouse') seek(event); });
  byId('steps').addEventListener('click', (/** @type {any} */ event) => {
    const item = event.target.closest('[data-step-index]');
    if (item) stop(Number(item.dataset.stepIndex));
  });
  byId('settings').addEventListener('input', (/** @type {any} */ event) => takeInput(event.target));
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
  let width = 0;
  new ResizeObserver(() => {
    const now = byId('scroll').clientWidth;
    if (now !== width) draw();
    width = now;
  }).observe(byId('scroll'));
}

/** Gets the stories, and shows the first, or the one in the address. */
async function start() {
  try {
    stories = recorded ? JSON.parse(recorded.textContent ?? '') : await answerOf('hazard/stories');
  } catch (error) {
    byId('problem').textContent = `The stories can’t be loaded: ${/** @type {Error} */ (error).message}. Load the page again.`;
    byId('problem').hidden = false;
    return;
  }
  byId('static').hidden = recorded === null;
  if (recorded) byId('home').removeAttribute('href');
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
