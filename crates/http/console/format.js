// @ts-check
// Numbers, durations and times for people. The exact value belongs into the `title` of what shows them.

const GROUPED = new Intl.NumberFormat('en-GB');

/**
 * A count, with its thousands separated.
 *
 * @param {number} value
 */
export function count(value) {
  return Number.isFinite(value) ? GROUPED.format(value) : '?';
}

/**
 * A count with its noun.
 *
 * @param {number} value
 * @param {string} one
 * @param {string} [many]
 */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/**
 * A duration by its two greatest units: `3 min 12 s`.
 *
 * @param {number} ms
 */
export function duration(ms) {
  if (!Number.isFinite(ms)) return '?';
  if (ms < 1_000) return ms <= 0 ? '0 s' : '< 1 s';
  const s = Math.floor(ms / 1_000);
  if (s < 60) return `${s} s`;
  const min = Math.floor(s / 60);
  if (min < 60) return two(min, 'min', s % 60, 's');
  const h = Math.floor(min / 60);
  if (h < 24) return two(h, 'h', min % 60, 'min');
  return two(Math.floor(h / 24), 'd', h % 24, 'h');
}

/**
 * A configured duration, in the greatest unit that divides it: `30 s`, `1,500 ms`, `1 h`.
 *
 * @param {number} ms
 */
export function setting(ms) {
  if (ms === 0) return '0';
  if (ms % 1_000 !== 0) return `${count(ms)} ms`;
  if (ms % 60_000 !== 0) return `${count(ms / 1_000)} s`;
  return ms % 3_600_000 === 0 ? `${count(ms / 3_600_000)} h` : `${count(ms / 60_000)} min`;
}

/**
 * The exact duration, for a `title`.
 *
 * @param {number} ms
 */
export function exactly(ms) {
  return `${count(Math.round(ms))} ms`;
}

/**
 * The time of day, by the viewer's zone: `14:03:07`.
 *
 * @param {number} at milliseconds since 1970
 */
export function clock(at) {
  return new Date(at).toLocaleTimeString('en-GB');
}

/**
 * Date and time by the viewer's zone: `2026-11-27 14:03:07`.
 *
 * @param {number} at milliseconds since 1970
 */
export function dateTime(at) {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return '?';
  return `${date.toLocaleDateString('sv-SE')} ${date.toLocaleTimeString('en-GB')}`;
}

/**
 * The time in UTC, for a `title`.
 *
 * @param {number} at milliseconds since 1970
 */
export function utc(at) {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? '' : date.toISOString();
}

/**
 * An amount of data: `3.2 GiB`.
 *
 * @param {number} size bytes
 */
export function bytes(size) {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (size >= 1_024 && unit < units.length - 1) {
    size /= 1_024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

/**
 * @param {number} big
 * @param {string} bigUnit
 * @param {number} small
 * @param {string} smallUnit
 */
function two(big, bigUnit, small, smallUnit) {
  return small === 0 ? `${big} ${bigUnit}` : `${big} ${bigUnit} ${small} ${smallUnit}`;
}
