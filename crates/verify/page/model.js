'use strict';

// What the timeline draws, made of the lines: holds, marks and faults, in rows by writer or by lock.

const data = JSON.parse(document.getElementById('data').textContent);
/** Bars of one row that overlap are drawn in lanes; further ones share the last. */
const [LANES_MAX, FAULT_LANES_MAX] = [10, 5];

const writerOf = (line) => data.writers[line.by][0];
const lockKey = (service, lock) => `${service} ${lock}`;

/** The number of each lock, which gives its colour. */
const lockNumbers = new Map();
function lockNumber(key) {
  if (!lockNumbers.has(key)) lockNumbers.set(key, lockNumbers.size);
  return lockNumbers.get(key);
}

/** The lock that guards each resource: a `read` does not name one. */
const lockOf = new Map();

/** A line's shape in the timeline, if it is drawn as a mark. */
function shapeOf(line) {
  switch (line.event) {
    case 'denied': return 'denied';
    case 'entered': return { accepted: 'accepted', stale: 'refused' }[line.verdict] ?? 'other';
    case 'wrote': return { done: 'done', stale: 'undone' }[line.outcome] ?? 'other';
    case 'downgraded': case 'status': case 'listed': case 'read': return 'other';
    default: return null;
  }
}

/** Everything that is drawn in rows, and the faults. An item has the indexes of its lines. */
function itemsOf(lines) {
  const items = [];
  const faults = [];
  const holds = new Map();
  const begun = new Map();
  lines.forEach((line, index) => {
    for (const lock of line.locks ?? (line.lock === undefined ? [] : [line.lock])) {
      lockNumber(lockKey(line.service, lock));
      if (line.resource !== undefined) lockOf.set(line.resource, [line.service, lock]);
    }
    if (line.event === 'granted') {
      const item = { shape: 'hold', line, from: line.at, to: null, lines: [index] };
      holds.set(`${line.by} ${line.hold}`, item);
      items.push(item);
    } else if (line.event === 'ended') {
      const item = holds.get(`${line.by} ${line.hold}`);
      if (item) Object.assign(item, { to: Math.max(line.until, item.from), end: line, lines: [...item.lines, index] });
    } else if (line.event === 'fault') {
      const key = JSON.stringify([line.fault, line.target]);
      if (line.begins) {
        const item = { shape: 'fault', line, from: line.at, to: data.end, lines: [index] };
        faults.push(item);
        begun.set(key, [...(begun.get(key) ?? []), item]);
      } else {
        Object.assign(begun.get(key)?.shift() ?? {}, { to: line.at, end: line });
      }
    } else if (shapeOf(line)) {
      items.push({ shape: shapeOf(line), line, from: line.at, to: line.at, lines: [index] });
    }
  });
  return { items, faults, holds };
}

const { items, faults, holds } = itemsOf(data.lines);
for (const item of items) {
  item.locks = locksOf(item);
  item.colour = item.locks.length > 0 ? lockNumber(lockKey(...item.locks[0])) % 8 : 0;
}

/** The locks of an item: `[service, lock]`. */
function locksOf({ line }) {
  if (line.locks) return line.locks.map((lock) => [line.service, lock]);
  if (line.lock !== undefined) return [[line.service, line.lock]];
  if (line.event === 'downgraded') {
    const hold = holds.get(`${line.by} ${line.hold}`);
    return hold ? locksOf(hold) : [];
  }
  const guard = lockOf.get(line.resource);
  return guard ? [guard] : [];
}

/** Gives each bar the first lane that is free for it. Returns the number of lanes. */
function assignLanes(bars, most) {
  const free = [];
  for (const bar of bars) {
    const from = bar.item.line.asked ?? bar.item.from;
    let lane = free.findIndex((end) => end <= from);
    if (lane < 0) lane = free.length < most ? free.length : most - 1;
    free[lane] = Math.max(free[lane] ?? 0, bar.item.to ?? bar.item.from);
    bar.lane = lane;
  }
  return Math.max(1, free.length);
}

const start = (item) => item.line.asked ?? item.from;

/** The rows: `{ name, about, entries: [{ item, lane }], lanes }`; marks have no lane. */
function rowsBy(grouping) {
  const rows = new Map();
  const services = new Set(data.lines.map((line) => line.service).filter((it) => it !== undefined));
  const row = (key, name, about) => {
    if (!rows.has(key)) rows.set(key, { name, about, entries: [] });
    return rows.get(key);
  };
  for (const item of items) {
    if (grouping === 'writer') {
      const [name, label] = data.writers[item.line.by];
      row(item.line.by, name, label ?? '').entries.push({ item });
    } else {
      for (const [service, lock] of item.locks) row(lockKey(service, lock), lock, services.size > 1 ? service : '').entries.push({ item });
      if (item.locks.length === 0 && item.line.resource !== undefined) row(`resource ${item.line.resource}`, item.line.resource, 'resource').entries.push({ item });
    }
  }
  const all = [...rows.values()].sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
  for (const it of all) {
    const bars = it.entries.filter(({ item }) => item.shape === 'hold').sort((one, other) => start(one.item) - start(other.item));
    it.lanes = assignLanes(bars, LANES_MAX);
  }
  return all;
}

const faultRow = { name: 'Faults', about: '', entries: faults.map((item) => ({ item })) };
faultRow.lanes = assignLanes(faultRow.entries, FAULT_LANES_MAX);

/** Whether an item is about what was searched for. */
function isAbout(item, query) {
  const { line } = item;
  const tokens = [line.token, ...(line.tokens ?? [])].filter((it) => it !== undefined).map(String);
  const words = [...(line.locks ?? []), line.lock, line.resource, writerOf(line)].filter((it) => it !== undefined);
  return tokens.includes(query) || words.some((word) => word.toLowerCase().includes(query));
}

/** A duration with its unit. */
function duration(ns) {
  const size = Math.abs(ns);
  if (size < 1e3) return `${Math.round(ns)} ns`;
  if (size < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  if (size < 1e9) return `${(ns / 1e6).toFixed(3)} ms`;
  return `${(ns / 1e9).toFixed(3)} s`;
}

/** What is known of an item, in lines of text. */
function detailsOf(item) {
  const { line, end } = item;
  const token = line.token === undefined ? '' : `, token ${line.token}`;
  const names = (item.locks ?? []).map(([, lock]) => lock).join(', ');
  const out = [];
  if (item.shape === 'fault') out.push(`Fault: ${line.fault} of ${line.target}`);
  else if (item.shape === 'hold') out.push(`${names}${token}`);
  else out.push(`${line.event}: ${[names || line.resource, line.verdict ?? line.outcome ?? line.answer ?? line.why].filter(Boolean).join(', ')}${token}`);
  if (line.asked !== undefined) out.push(`asked ${duration(line.at - line.asked)} before`);
  out.push(`at ${(line.at / 1e9).toFixed(6)} s`);
  if (item.shape === 'hold') out.push(end ? `until ${(item.to / 1e9).toFixed(6)} s (${duration(item.to - item.from)}): ${end.how}` : 'its end is not in this page');
  if (item.shape === 'fault') out.push(end ? `for ${duration(item.to - item.from)}` : 'its end is not in the history');
  if (item.shape !== 'fault') out.push(`by ${data.writers[line.by].filter(Boolean).join(', ')}`);
  const more = ['mode', 'subtree', 'cached', 'resource', 'version', 'saw', 'made', 'service'].filter((key) => line[key] !== undefined);
  return [...out, ...more.map((key) => `${key}: ${line[key]}`)].join('\n');
}
