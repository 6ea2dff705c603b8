// @ts-check
// The picture: a trace as a timeline in SVG.

/** @import { Lane, Account, Step, Message, Trace } from './model.js' */
import { NAMES, LATE_MS, QUIET_MS, byId, html, svg, seconds, fitting, clientsOf, reliesUntil, wrongBeliefs, conflicts, accountAfter, withToken } from './model.js';

/** A time axis that shortens quiet stretches: linear between two events, and a gap's width grows with the root of its length.
 * @param {Trace} trace @param {number} width to fill, in pixels */
function scaleOf(trace, width) {
  const left = 14, right = 64;
  const shown = trace.messages.filter((m) => m.kind !== 'session');
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
  /** With the height of the texts below a lane's bars. @type {Record<string, {top: number, bar: number, height: number, bottom: number, below: number}>} */
  const lanes = {};
  const hasFaults = trace.spans.some((span) => span.kind === 'paused' || span.kind === 'cut');
  let top = 44;
  const add = (/** @type {Lane} */ lane, /** @type {number} */ bar, /** @type {number} */ height, /** @type {number} */ rest) => {
    lanes[lane] = { top, bar: top + bar, height, bottom: top + bar + height, below: top + bar + height + (rest > 30 ? 35 : 14) };
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

/** An arrow, and what it says. @param {Message} message @param {Trace} trace @param {Scale} scale @param {Layout} layout */
function drawMessage(message, trace, scale, layout) {
  const isDown = layout.lanes[message.to].top > layout.lanes[message.from].top;
  const [from, to] = [layout.lanes[message.from], layout.lanes[message.to]];
  const isLate = message.arrives_ms - message.sent_ms > LATE_MS, ofSession = message.kind === 'session';
  const x1 = scale.x(message.sent_ms), y1 = isDown ? from.bottom : from.bar;
  const x2 = message.arrives_ms > trace.end_ms ? scale.end + 14 : scale.x(message.arrives_ms), y2 = isDown ? to.bar : to.bottom;
  const length = Math.hypot(x2 - x1, y2 - y1) || 1, [dx, dy] = [(x2 - x1) / length, (y2 - y1) / length];
  const head = `M${x2} ${y2}L${x2 - 8 * dx - 3.5 * dy} ${y2 - 8 * dy + 3.5 * dx}L${x2 - 8 * dx + 3.5 * dy} ${y2 - 8 * dy - 3.5 * dx}z`;
  const isOfClient = message.from !== 'locks' && message.from !== 'resource';
  const name = `of-${isOfClient ? message.from : message.to}${isLate ? ' late' : ''}`;
  const element = svg('g', { class: `message ${name}${ofSession ? ' background' : ''}` },
    svg('title', {}, `${NAMES[message.from]} to ${NAMES[message.to]}: ${message.text}`), svg('line', { x1, y1, x2: x2 - 5 * dx, y2: y2 - 5 * dy }), svg('path', { class: 'head', d: head }));
  if (ofSession || /^(written|refused)$/.test(message.text)) return { message, element, label: null };
  // Where fewest texts meet: at the client, but what the account gets and says there. A late message's end is far away.
  const isAnswer = message.kind === 'answer', isAtStart = isLate || isOfClient || isAnswer;
  const atBar = isAtStart ? !isDown : isDown;
  const near = isAtStart ? from : to;
  const y = message.kind === 'write' && !isLate ? layout.lanes.resource.top - 5 : atBar ? near.bar - 5 : near.below;
  // Beside the arrow, over the whole height of the text.
  const xs = [y - 10, y + 3].map((at) => x1 + Math.max(0, Math.min(1, (at - y1) / (y2 - y1))) * (x2 - x1));
  const isRight = isAnswer || Math.min(...xs) < message.text.length * 6.3;
  const label = svg('text', { x: isRight ? Math.max(...xs) + 5 : Math.min(...xs) - 5, y, 'text-anchor': isRight ? 'start' : 'end', class: `said halo ${name}` }, message.text);
  return { message, element, label };
}

/** The mark of a step on its lane. @param {Step} step @param {Scale} scale @param {Layout} layout */
function drawStep(step, scale, layout) {
  const lane = layout.lanes[step.lane], x = scale.x(step.at_ms);
  const group = svg('g', { class: `of-${step.lane}` }, svg('title', {}, `${seconds(step.at_ms)}, ${NAMES[step.lane]}: ${step.text}`));
  const isSign = step.kind === 'refused' || step.kind === 'damage';
  group.append(svg('circle', { class: 'dot', cx: x, cy: step.lane === 'resource' ? lane.bar : lane.bottom, r: 3 }));
  if (step.kind === 'fault') group.append(sign('fault', x, lane.bottom));
  if (!isSign) return group;
  const y = step.lane === 'resource' ? lane.top + 18 : lane.bar + 12;
  group.append(sign(step.kind, x, y));
  if (step.lane === 'resource') {
    const isRight = x > scale.width * 0.55;
    group.append(svg('text', { x: x + (isRight ? -17 : 17), y: y + 4, 'text-anchor': isRight ? 'end' : 'start', class: 'halo wrong-text' }, step.text.replace(/^.*?: /, step.kind === 'refused' ? 'refused: ' : '')));
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
export function drawPicture(trace, width) {
  const layout = layoutOf(trace), scale = scaleOf(trace, width);
  const messages = trace.messages.filter((m) => m.sent_ms <= trace.end_ms && !(m.kind === 'session' && m.arrives_ms > trace.end_ms)).map((message) => drawMessage(message, trace, scale, layout));
  const steps = trace.steps.map((step) => drawStep(step, scale, layout));
  // Texts are above the messages that cross them.
  const spans = drawSpans(trace, scale, layout), texts = svg('g', { class: 'texts' }, ...spans.querySelectorAll('text'), ...messages.flatMap(({ label }) => label ?? []));
  const byImportance = [...messages].sort((a, b) => Number(b.message.kind === 'session') - Number(a.message.kind === 'session'));
  const veil = svg('rect', { y: 0, height: layout.bottom, class: 'veil' });
  const cursor = svg('g', {}, svg('line', { y1: 20, y2: layout.bottom, class: 'cursor' }), svg('path', { d: 'M-5 18h10l-5 7z', class: 'cursor-head' }));
  const root = svg('svg', { width: scale.width, height: layout.bottom, role: 'img', 'aria-label': 'Timeline of the play; the list of steps says the same in words' },
    patterns(), drawGround(trace, scale, layout), spans, drawAccount(trace, scale, layout), ...byImportance.map(({ element }) => element), texts, ...steps, veil, cursor);
  return { root, layout, scale, messages, steps, veil, cursor };
}

/** The lanes' names, at the left of the picture. @param {Trace} trace @param {Layout} layout */
export function drawNames(trace, layout) {
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
/** What the bars and signs mean. */
export function drawLegend() {
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
