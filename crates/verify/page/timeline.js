// Draws the rows and the strip of the whole history, and follows the reader's wishes.

const byId = (id) => document.getElementById(id);
const [strip, canvas, scroll, spacer, tip] = ['strip', 'rows', 'scroll', 'spacer', 'tip'].map(byId);
const rowsOf = { writer: rowsBy('writer'), lock: rowsBy('lock') };
const buttons = [...document.querySelectorAll('[data-violation]')];
const SPAN = Math.max(data.end, 1);
/** The whole history, with some room at both ends. */
const WHOLE = { from: -SPAN * 0.01, to: SPAN * 1.01 };
/** The axis has room for the numbers of violations. */
const [LANE, MARKS, AXIS, PAD] = [18, 15, data.violations.length > 0 ? 44 : 24, 5];
const state = { view: { ...WHOLE }, grouping: 'writer', query: '', selected: null, proof: new Map(), tokens: new Set(), rows: [], boxes: [] };

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ['ground', 'surface', 'hover', 'line', 'line-strong', 'text', 'dim', 'accent', 'good', 'warn', 'warn-line', 'warn-soft', 'bad', 'bad-text', 'k0', 'k1', 'k2', 'k3', 'k4', 'k5', 'k6', 'k7'];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
const FONT = getComputedStyle(document.body).fontFamily;
const font = (size, weight = 400) => `${weight} ${size}px ${FONT}`;

/** A canvas of its size on the screen; returns its context. */
function prepared(of, width, height) {
  const ratio = window.devicePixelRatio || 1;
  if (of.width !== Math.round(width * ratio) || of.height !== Math.round(height * ratio)) {
    of.width = Math.round(width * ratio);
    of.height = Math.round(height * ratio);
    of.style.height = `${height}px`;
  }
  const context = of.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** A text that is cut to fit. */
function cut(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let [short, long] = [0, text.length];
  while (short < long) {
    const middle = Math.ceil((short + long) / 2);
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) short = middle;
    else long = middle - 1;
  }
  return short < 2 ? '' : `${text.slice(0, short)}…`;
}

const heightOf = (row) => 2 * PAD + row.lanes * LANE + (row === faultRow ? 0 : MARKS);

/** The rows that are shown, those of the proof first. */
function chooseRows() {
  const query = state.query.toLowerCase();
  let rows = rowsOf[state.grouping];
  for (const row of rows) {
    const isNamed = query === '' || row.name.toLowerCase().includes(query) || row.about.toLowerCase().includes(query);
    row.found = isNamed ? null : new Set(row.entries.map(({ item }) => item).filter((item) => isAbout(item, query)));
  }
  rows = rows.filter((row) => row.found === null || row.found.size > 0);
  const proves = (row) => row.entries.some(({ item }) => isProof(item));
  const proven = new Map(rows.map((row) => [row, state.selected !== null && proves(row)]));
  state.rows = [...rows.filter((row) => proven.get(row)), ...rows.filter((row) => !proven.get(row))];
  state.proven = proven;
  byId('empty').hidden = rows.length > 0;
}

const isProof = (item) => item.lines.some((index) => state.proof.has(index));

/** The distance of the axis' marks: 1, 2 or 5 of a power of ten. */
function stepFor(wanted) {
  const power = 10 ** Math.floor(Math.log10(wanted));
  return power * [1, 2, 5, 10].find((it) => power * it >= wanted);
}

function draw() {
  const width = scroll.clientWidth;
  const gutter = width < 560 ? 104 : 150;
  const top = AXIS + (faults.length ? heightOf(faultRow) : 0);
  const total = top + state.rows.reduce((sum, row) => sum + heightOf(row), 0);
  const height = Math.min(total, Math.max(260, window.innerHeight * 0.68));
  scroll.style.height = `${height + 1}px`;
  spacer.style.height = `${total - height}px`;
  const c = prepared(canvas, width, height);
  const { from, to } = state.view;
  const plot = width - gutter;
  const x = (time) => gutter + ((time - from) / (to - from)) * plot;
  Object.assign(state, { gutter, plot, boxes: [], bands: [] });
  state.timeAt = (px) => from + ((px - gutter) / plot) * (to - from);

  // Rows, and where lines were left out.
  let y = top - scroll.scrollTop;
  const places = state.rows.map((row) => {
    const place = { row, y, height: heightOf(row) };
    y += place.height;
    return place;
  }).filter((place) => place.y + place.height > top && place.y < height);
  c.fillStyle = colours.hover;
  for (const [begin, end] of gaps()) c.fillRect(x(begin), AXIS, x(end) - x(begin), height);
  drawAxis(c, x, height, width);
  c.save();
  c.beginPath();
  c.rect(0, top, width, height - top);
  c.clip();
  for (const place of places) drawLabel(c, place, width);
  c.restore();

  c.save();
  c.beginPath();
  c.rect(gutter, 0, plot, height);
  c.clip();
  drawBands(c, x, height);
  c.beginPath();
  c.rect(gutter, top, plot, height - top);
  c.clip();
  for (const place of places) drawEntries(c, place, x, width);
  c.restore();

  if (faults.length) {
    const place = { row: faultRow, y: AXIS, height: heightOf(faultRow) };
    drawLabel(c, place, width);
    c.save();
    c.beginPath();
    c.rect(gutter, AXIS, plot, place.height);
    c.clip();
    for (const { item, lane } of faultRow.entries) drawFault(c, item, AXIS + PAD + lane * LANE, x, width);
    c.restore();
  }
  drawNumbers(c, places, x, top, width);
  drawStrip();
}

/** The spans of the view without lines, in a page with a part of the history. */
function gaps() {
  if (!data.kept) return [];
  const edges = [-SPAN, ...data.kept.flat(), 2 * SPAN];
  return Array.from({ length: edges.length / 2 }, (_, index) => [edges[2 * index], edges[2 * index + 1]]);
}

function drawAxis(c, x, height, width) {
  const { from, to } = state.view;
  const step = stepFor(((to - from) / state.plot) * 110);
  const digits = Math.max(0, Math.min(9, 9 - Math.floor(Math.log10(step))));
  c.font = font(11);
  c.textBaseline = 'middle';
  c.textAlign = 'center';
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    c.fillStyle = colours.line;
    c.fillRect(Math.round(x(at)), 20, 1, height);
    c.fillStyle = colours.dim;
    if (x(at) > state.gutter + 26 && x(at) < width - 26) c.fillText(`${(at / 1e9).toFixed(digits)} s`, x(at), 12);
  }
  c.textAlign = 'left';
}

function drawLabel(c, { row, y, height }, width) {
  const isProven = state.proven.get(row);
  c.fillStyle = row === faultRow ? colours['warn-soft'] : colours.surface;
  if (row === faultRow) c.globalAlpha = 0.5;
  if (row === faultRow || isProven) c.fillRect(0, y, state.gutter, height);
  c.globalAlpha = 1;
  c.fillStyle = colours.line;
  c.fillRect(0, Math.round(y + height) - 1, width, 1);
  c.fillStyle = isProven ? colours.bad : colours.text;
  c.textBaseline = 'middle';
  c.textAlign = 'left';
  const left = state.gutter < 150 ? 8 : 14;
  c.font = font(state.gutter < 150 ? 11.5 : 12.5, 600);
  c.fillText(cut(c, row.name, state.gutter - left - 4), left, y + PAD + LANE / 2);
  if (isProven) c.fillRect(0, y, 4, height - 1);
  c.fillStyle = colours.dim;
  c.font = font(11);
  if (row.about) c.fillText(cut(c, row.about, state.gutter - left - 4), left, y + PAD + LANE / 2 + 15);
}

/** The moments of violations, across all rows, with their numbers. */
function drawBands(c, x, height) {
  let right = -1;
  data.violations.forEach(({ moment: [begin, end] }, index) => {
    const [left, width] = [x(begin), Math.max(x(end) - x(begin), 2)];
    state.bands.push([left, left + width, index]);
    const isSelected = state.selected === index;
    c.fillStyle = colours.bad;
    c.globalAlpha = state.selected === null || isSelected ? 0.2 : 0.1;
    c.fillRect(left, AXIS - 3, width, height);
    c.globalAlpha = 0.9;
    for (const edge of [left, left + width - 1]) c.fillRect(edge, AXIS - 3, 1, height);
    c.fillRect(left, AXIS - 3, width, 3);
    c.globalAlpha = 1;
    const text = `${index + 1}`;
    const [middle, half] = [left + width / 2, 6 + 3.5 * text.length];
    if (!isSelected && middle - half < right) return;
    right = middle + half;
    c.beginPath();
    c.roundRect(middle - half, AXIS - 21, 2 * half, 17, 4);
    c.fillStyle = isSelected ? colours.bad : colours.surface;
    c.strokeStyle = colours.bad;
    c.lineWidth = 1;
    c.fill();
    c.stroke();
    c.font = font(11, 650);
    c.textAlign = 'center';
    c.fillStyle = isSelected ? colours['bad-text'] : colours.bad;
    c.fillText(text, middle, AXIS - 12);
    c.textAlign = 'left';
  });
}

const holdKey = ({ token, locks, lock }) => (token === undefined ? null : `${token} ${locks ?? [lock]}`);

/** Whether an item recedes behind what is searched for, or behind the proof and what has its tokens. */
function recedes(item, row) {
  if (row.found) return !row.found.has(item);
  return state.selected !== null && !isProof(item) && !state.tokens.has(holdKey(item.line));
}

function drawEntries(c, { row, y }, x, width) {
  const marks = y + PAD + row.lanes * LANE + MARKS / 2 - 1;
  const last = { hold: [], mark: {} };
  const { from, to } = state.view;
  const seen = row.entries.filter(({ item }) => item.shape !== 'hold' && item.from >= from && item.from <= to).length;
  const size = seen * 9 > state.plot ? 2 : 4.5;
  for (const { item, lane } of row.entries) {
    const [left, right] = [x(item.shape === 'hold' ? start(item) : item.from), x(item.to ?? item.from)];
    const isProven = state.proof.size > 0 && isProof(item);
    if (right < state.gutter - 14 || left > width + 14) continue;
    c.globalAlpha = isProven ? 1 : recedes(item, row) ? (row.found ? 0.2 : 0.45) : 1;
    if (item.shape === 'hold') {
      // Bars that fall on the same pixel are drawn once.
      if (!isProven && right < (last.hold[lane] ?? -1)) continue;
      last.hold[lane] = Math.max(right, left + 1);
      drawHold(c, item, y + PAD + lane * LANE, x, isProven);
    } else {
      if (!isProven && left - (last.mark[item.shape] ?? -9) < 1) continue;
      last.mark[item.shape] = left;
      drawMark(c, item, left, marks, isProven ? 6 : size);
    }
  }
  c.globalAlpha = 1;
}

function drawHold(c, item, y, x, isProven) {
  const [asked, left] = [x(start(item)), x(item.from)];
  const isOpen = item.to === null;
  const width = isOpen ? 22 : Math.max(x(item.to) - left, 2);
  const colour = colours[`k${item.colour}`];
  const alpha = c.globalAlpha;
  state.boxes.push([asked, y, left + width - asked, LANE, item]);
  c.fillStyle = colour;
  if (left - asked > 0.5) c.fillRect(asked, y + LANE / 2 - 1, left - asked, 1.5);
  if (width < 4 && !isProven) {
    c.fillRect(left, y + 1, width, LANE - 3);
    return;
  }
  c.fillStyle = colours.surface;
  c.fillRect(left, y + 1, width, LANE - 3);
  c.globalAlpha = alpha * (isOpen ? 0.08 : 0.26);
  c.fillStyle = colour;
  c.fillRect(left, y + 1, width, LANE - 3);
  c.globalAlpha = alpha;
  c.lineWidth = isProven ? 2.5 : 1;
  c.strokeStyle = isProven ? colours.bad : colour;
  if (isOpen) c.setLineDash([3, 2]);
  c.strokeRect(left + 0.5, y + 1.5, width - 1, LANE - 4);
  if (isOpen) c.setLineDash([]);
  // At the edge is the number of a grant that is farther left.
  const from = left >= state.gutter ? left : state.gutter + (isProven ? 24 : 0);
  const room = left + width - from - 8;
  if (room > 24) {
    const token = item.line.token === undefined ? '' : `${item.line.token}`;
    const name = state.grouping === 'writer' ? item.line.locks.join(', ') : writerOf(item.line);
    c.font = font(11, isProven ? 650 : 400);
    c.fillStyle = colours.text;
    c.textBaseline = 'middle';
    const whole = [token, name].filter(Boolean).join(' · ');
    const isWide = c.measureText(whole).width <= room || room > 90;
    const text = isWide ? cut(c, whole, room) : [token, name].find((it) => it && c.measureText(it).width <= room);
    if (text) c.fillText(text, from + 4, y + LANE / 2 + 0.5);
  }
}

function drawMark(c, item, x, y, full) {
  const isProven = full > 5;
  const isWrong = ['denied', 'refused', 'undone'].includes(item.shape);
  const size = isWrong ? Math.max(full, 4) : full;
  state.boxes.push([x - 6, y - 7, 12, 14, item]);
  if (size < 4) {
    c.fillStyle = ['accepted', 'done'].includes(item.shape) ? colours.good : colours.dim;
    c.fillRect(x - 1, y - 2, 2, 4);
    return;
  }
  c.lineWidth = 1.75;
  c.beginPath();
  switch (item.shape) {
    case 'denied':
      c.moveTo(x - 3.5, y - 3.5); c.lineTo(x + 3.5, y + 3.5); c.moveTo(x + 3.5, y - 3.5); c.lineTo(x - 3.5, y + 3.5);
      break;
    case 'accepted':
      c.moveTo(x, y - size); c.lineTo(x + size, y + size); c.lineTo(x - size, y + size); c.closePath();
      break;
    case 'refused':
      c.moveTo(x, y - size - 1); c.lineTo(x + size + 1, y); c.lineTo(x, y + size + 1); c.lineTo(x - size - 1, y); c.closePath();
      break;
    case 'done': case 'undone':
      c.rect(x - size + 0.5, y - size + 0.5, 2 * size - 1, 2 * size - 1);
      break;
    default:
      c.arc(x, y, Math.max(size - 2, 1), 0, 7);
  }
  const isFull = ['accepted', 'done'].includes(item.shape);
  c.fillStyle = isWrong ? colours.surface : isFull ? colours.good : colours.dim;
  c.strokeStyle = isProven ? colours.bad : isWrong ? colours.warn : colours.surface;
  if (isWrong || isProven) c.stroke();
  if (item.shape !== 'denied') c.fill();
  if (isWrong || isProven) c.stroke();
}

function drawFault(c, item, y, x, width) {
  const left = Math.max(x(item.from), state.gutter - 4);
  const right = Math.min(Math.max(x(item.to), x(item.from) + 2), width + 4);
  if (right < state.gutter || left > width) return;
  c.fillStyle = colours['warn-soft'];
  c.strokeStyle = colours['warn-line'];
  c.lineWidth = 1;
  c.fillRect(left, y + 1, right - left, LANE - 3);
  c.strokeRect(left + 0.5, y + 1.5, right - left - 1, LANE - 4);
  c.font = font(11);
  c.fillStyle = colours.warn;
  c.textBaseline = 'middle';
  const from = Math.max(left, state.gutter);
  c.fillText(cut(c, `${item.line.fault} ${item.line.target}`, right - from - 8), from + 4, y + LANE / 2 + 0.5);
  state.boxes.push([left, y, right - left, LANE, item]);
}

/** A number in a red circle. */
function drawNumber(c, text, x, y) {
  c.beginPath();
  c.arc(x, y, 8, 0, 7);
  c.fillStyle = colours.bad;
  c.fill();
  c.lineWidth = 1.5;
  c.strokeStyle = colours.surface;
  c.stroke();
  c.font = font(11, 650);
  c.textAlign = 'center';
  c.textBaseline = 'middle';
  c.fillStyle = colours['bad-text'];
  c.fillText(text, x, y + 0.5);
  c.textAlign = 'left';
}

/** The numbers of the lines that prove the selected violation, as in the list; at the edge, those outside. */
function drawNumbers(c, places, x, top, width) {
  for (const { row, y } of places) {
    for (const { item, lane } of row.entries) {
      for (const index of item.lines.filter((it) => state.proof.has(it))) {
        const line = data.lines[index];
        const above = item.shape === 'hold' ? lane * LANE : row.lanes * LANE + MARKS / 2 - 13;
        const py = Math.max(y + PAD + above - 1, top + 3);
        if (y + PAD + above < top - 10) continue;
        const place = x(line.event === 'ended' ? line.until : line.at);
        const side = place < state.gutter ? -1 : place > width ? 1 : 0;
        const px = Math.max(state.gutter + 17, Math.min(place, width - 17));
        drawNumber(c, `${state.proof.get(index)}`, side === 0 ? place : px, py);
        if (side === 0) continue;
        c.fillStyle = colours.bad;
        c.beginPath();
        c.moveTo(px + side * 16, py);
        c.lineTo(px + side * 10, py - 5);
        c.lineTo(px + side * 10, py + 5);
        c.fill();
      }
    }
  }
}

/** The whole history: grants over time, violations, and the part that is seen below. */
function drawStrip() {
  const [width, height] = [strip.clientWidth, 38];
  const c = prepared(strip, width, height);
  const x = (time) => state.gutter + ((time - WHOLE.from) / (WHOLE.to - WHOLE.from)) * state.plot;
  c.fillStyle = colours.dim;
  c.font = font(11);
  c.textBaseline = 'middle';
  const left = state.gutter < 150 ? 8 : 14;
  c.fillText(cut(c, 'Grants, all the time', state.gutter - left - 4), left, height / 2);
  const { from, width: interval, counts } = data.density;
  const most = counts.reduce((one, other) => Math.max(one, other), 1);
  c.fillStyle = colours['line-strong'];
  counts.forEach((count, index) => {
    const left = x(from + index * interval);
    const high = count === 0 ? 0 : Math.max(1, (count / most) * (height - 8));
    c.fillRect(left, height - high, Math.max(1, x(from + (index + 1) * interval) - left), high);
  });
  c.fillStyle = colours.bad;
  for (const { moment } of data.violations) c.fillRect(x(moment[0]) - 1, 0, Math.max(3, x(moment[1]) - x(moment[0])), height);
  const begin = Math.max(x(state.view.from), state.gutter);
  const end = Math.min(Math.max(x(state.view.to), begin + 3), width);
  c.globalAlpha = 0.16;
  c.fillStyle = colours.accent;
  c.fillRect(begin, 0, end - begin, height);
  c.globalAlpha = 1;
  c.strokeStyle = colours.accent;
  c.lineWidth = 2;
  c.strokeRect(begin + 1, 1, end - begin - 2, height - 2);
}

let isPending = false;
function later() {
  if (isPending) return;
  isPending = true;
  requestAnimationFrame(() => {
    isPending = false;
    draw();
  });
}

/** Shows this part; never less than 100 ns, and never far from the history. */
function show(from, to) {
  const length = Math.max(100, Math.min(to - from, WHOLE.to - WHOLE.from));
  const begin = Math.max(WHOLE.from, Math.min((from + to - length) / 2, WHOLE.to - length));
  state.view = { from: begin, to: begin + length };
  later();
}
const zoom = (factor, around = (state.view.from + state.view.to) / 2) => show(around - (around - state.view.from) * factor, around + (state.view.to - around) * factor);
const move = (part) => {
  const by = (state.view.to - state.view.from) * part;
  show(state.view.from + by, state.view.to + by);
};

/** Selects a violation, or none: its lines in the list and in the timeline. */
function select(index) {
  state.selected = index;
  const violation = data.violations[index];
  state.proof = new Map((violation?.proof ?? []).map((line, place) => [line, place + 1]));
  state.tokens = new Set((violation?.proof ?? []).map((line) => holdKey(data.lines[line])).filter(Boolean));
  buttons.forEach((button, number) => {
    const isSelected = number === index;
    button.setAttribute('aria-expanded', `${isSelected}`);
    if (isSelected) button.setAttribute('aria-current', 'true');
    else button.removeAttribute('aria-current');
    byId(button.getAttribute('aria-controls')).hidden = !isSelected;
  });
  document.body.dataset.selected = index ?? '';
  scroll.scrollTop = 0;
  chooseRows();
  if (!violation) return show(WHOLE.from, WHOLE.to);
  const [begin, end] = violation.moment;
  const times = violation.proof.map((line) => data.lines[line].until ?? data.lines[line].at);
  let [from, to] = [Math.min(begin, ...times), Math.max(end, ...times)];
  // Beside an overlap of some milliseconds, a hold of an hour is seen in part.
  if (violation.kind === 'overlap' && end > begin) [from, to] = [Math.max(from, begin - 20 * (end - begin)), Math.min(to, end + 20 * (end - begin))];
  const room = Math.max((to - from) * 0.2, 1000);
  return show(from - room, to + room);
}

/** Zooms to what was searched for. */
function showFound() {
  const found = state.rows.flatMap((row) => [...(row.found ?? [])]);
  if (found.length === 0) return;
  const from = found.reduce((least, item) => Math.min(least, start(item)), Infinity);
  const to = found.reduce((most, item) => Math.max(most, item.to ?? item.from), -Infinity);
  const room = Math.max((to - from) * 0.2, 1000);
  show(from - room, to + room);
}

function showTip(event) {
  const [px, py] = [event.offsetX, event.offsetY];
  const hit = state.boxes.findLast(([x, y, width, height]) => px >= x - 2 && px <= x + width + 2 && py >= y && py <= y + height);
  const isOver = px > state.gutter && hit && event.buttons === 0;
  tip.hidden = !isOver;
  if (!isOver) return;
  tip.textContent = detailsOf(hit[4]);
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, window.innerHeight - height - 8))}px`;
}

canvas.addEventListener('wheel', (event) => {
  event.preventDefault();
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / state.plot);
  else zoom(Math.exp(Math.max(-0.5, Math.min(event.deltaY * 0.002, 0.5))), state.timeAt(event.offsetX));
}, { passive: false });
let drag = null;
canvas.addEventListener('pointerdown', (event) => {
  drag = { x: event.clientX, y: event.clientY, moved: 0 };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener('pointermove', (event) => {
  showTip(event);
  if (!drag) return;
  const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
  drag = { x: event.clientX, y: event.clientY, moved: drag.moved + Math.abs(dx) + Math.abs(dy) };
  if (event.pointerType === 'mouse') scroll.scrollTop -= dy;
  move(-dx / state.plot);
});
canvas.addEventListener('pointerup', (event) => {
  const band = state.bands.find(([left, right]) => event.offsetX >= left - 3 && event.offsetX <= right + 3);
  if (drag && drag.moved < 4 && band) select(band[2]);
  drag = null;
});
canvas.addEventListener('pointercancel', () => { drag = null; });
canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
canvas.addEventListener('keydown', (event) => {
  const keys = { '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1 / 0.6), 0: () => select(null), ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15), ArrowUp: () => scroll.scrollBy(0, -60), ArrowDown: () => scroll.scrollBy(0, 60) };
  if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  keys[event.key]();
});
function jump(event) {
  if (event.buttons === 0) return;
  const at = WHOLE.from + ((event.offsetX - state.gutter) / state.plot) * (WHOLE.to - WHOLE.from);
  const half = (state.view.to - state.view.from) / 2;
  show(at - half, at + half);
}
strip.addEventListener('pointerdown', jump);
strip.addEventListener('pointermove', jump);
scroll.addEventListener('scroll', later);
window.addEventListener('resize', later);
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); later(); });
byId('in').addEventListener('click', () => zoom(0.6));
byId('out').addEventListener('click', () => zoom(1 / 0.6));
byId('whole').addEventListener('click', () => select(null));
byId('search').addEventListener('input', ({ target }) => { state.query = target.value.trim(); chooseRows(); later(); });
byId('search').addEventListener('keydown', ({ key }) => { if (key === 'Enter') showFound(); });
for (const radio of document.querySelectorAll('[name="grouping"]')) radio.addEventListener('change', () => { state.grouping = radio.value; scroll.scrollTop = 0; chooseRows(); later(); });
buttons.forEach((button, index) => button.addEventListener('click', () => select(index)));
document.querySelectorAll('.tools :disabled').forEach((it) => { it.disabled = false; });

readColours();
const linked = /^#v(\d+)$/.exec(location.hash);
select(buttons.length ? Math.min(linked ? linked[1] - 1 : 0, buttons.length - 1) : null);
