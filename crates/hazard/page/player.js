// @ts-check
// The player: the position in a trace, playing, and what the page shows of it in words. `showTrace` shows another trace.

/** @import { Message, Trace } from './model.js' */
import { NAMES, VERDICTS, SIGNS, QUIET_MS, byId, html, seconds, stateAt } from './model.js';
import { drawPicture, drawNames } from './picture.js';

/** @type {Trace|null} */ let trace = null;
/** @type {ReturnType<typeof drawPicture>|null} */ let picture = null;
/** The current step, -1 before the first, and the time of the cursor. */
const position = { index: -1, time: 0 };
let isPlaying = false;
/** The messages on their way at the cursor: their arrows and texts. @type {Set<Element>} */ let underWay = new Set();
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
export function setPlaying(plays) {
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
  const now = new Set(picture.messages.filter(({ message }) => message.kind !== 'session' && isNow(message)).flatMap(({ element, label }) => (label ? [element, label] : [element])));
  for (const element of underWay) if (!now.has(element)) element.classList.remove('now');
  for (const element of now) element.classList.add('now');
  underWay = now;
  // What was written stays.
  for (const { message, label } of picture.messages) if (message.kind === 'write') label?.classList.toggle('always', message.sent_ms <= time);
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
  scrubber.setAttribute('aria-valuetext', `${seconds(Math.round(time / 100) * 100)}${step ? `: ${NAMES[step.lane]} ${step.text}` : ''}`);
  for (const mark of picture.root.querySelectorAll('.dot.current')) mark.classList.remove('current');
  picture.steps[index]?.querySelector('.dot').classList.add('current');
  const caption = byId('caption'), isEnd = time >= trace.end_ms && index === trace.steps.length - 1;
  const words = step ? [html('span', 'at num', seconds(step.at_ms)), html('b', '', NAMES[step.lane]), ` ${SIGNS[step.kind]}${step.text}`] : ['Play, or take one step after the other.'];
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
export function draw() {
  if (!trace) return;
  picture = drawPicture(trace, byId('scroll').clientWidth);
  underWay = new Set();
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
export function showTrace(next, isFromStart) {
  const wasAtEnd = trace !== null && position.time >= trace.end_ms;
  trace = next;
  if (isFromStart) position.time = 0;
  position.time = wasAtEnd && !isFromStart ? trace.end_ms : Math.min(position.time, trace.end_ms);
  position.index = position.time === 0 ? -1 : indexAt(trace, position.time);
  byId('steps').replaceChildren(...trace.steps.map((step, i) => {
    const button = html('button', '', html('span', 'at', (step.at_ms / 1000).toFixed(3)), html('span', `who of-${step.lane}`, NAMES[step.lane]), html('span', 'what', SIGNS[step.kind] + step.text));
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

/** Plays, or pauses. */
export const togglePlaying = () => setPlaying(!isPlaying);

/** Pauses, and moves to a step. @param {number} index */
export function stopAt(index) {
  setPlaying(false);
  toStep(index);
}

/** Pauses, and moves on by steps. @param {number} count may be negative */
export const stopBeside = (count) => stopAt(position.index + count);

/** Pauses, and moves to where the scrubber is. @param {number} thousandths of the picture */
export function scrub(thousandths) {
  if (!picture) return;
  setPlaying(false);
  const { scale } = picture;
  toTime(scale.t(scale.x(0) + (thousandths / 1000) * (scale.end - scale.x(0))));
}

/** Pauses, and moves to where the pointer is. @param {PointerEvent} event */
export function seek(event) {
  if (!picture) return;
  setPlaying(false);
  toTime(picture.scale.t(event.clientX - picture.root.getBoundingClientRect().left));
}
