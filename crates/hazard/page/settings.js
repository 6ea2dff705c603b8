// @ts-check
// The settings: the form's fields, their values, and the query that names what is chosen.

/** @import { Story } from './model.js' */
import { FENCES, byId, html } from './model.js';

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

/** What is chosen: a story, a fence, and the settings that differ from the story's own, as the query has them.
 * @type {{story: Story, fence: string, changed: Map<string, string>}} */
export const chosen = { story: /** @type {any} */ (null), fence: 'none', changed: new Map() };
/** In the single file: the stories and their traces; no node computes others. */
export const recorded = document.getElementById('recorded');

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
export function change(key, text) {
  const field = FIELDS.get(key);
  if (!field) return;
  const value = field.unit === 's' ? inMilliseconds(text) : text;
  if (value === ownValue(chosen.story, field)) chosen.changed.delete(key);
  else chosen.changed.set(key, value);
}

/** The address of what is chosen. @param {string} fence */
export const queryOf = (fence) => new URLSearchParams([['story', chosen.story.name], ['fence', fence], ...chosen.changed]).toString();
/** @returns {string[]} the fences that fit: Redlock issues no tokens */
export const fittingFences = () => (valueOf('service') === 'redlock' ? ['none'] : FENCES.map(({ name }) => name));

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
export function drawForm() {
  const isOfStory = (/** @type {Field} */ field) => !['never', '0ms', '0', 'false', 'writer', 'lockkeeper', '2000ms'].includes(ownValue(chosen.story, field));
  const draw = (/** @type {typeof GROUPS} */ groups) => groups.map(({ title, fields }) => html('fieldset', '', html('legend', '', title), ...fields.map(drawField)));
  const isFirst = (/** @type {typeof GROUPS[0]} */ group) => group.title === 'The lease' || group.fields.some((field) => isOfStory(field));
  byId('first-fields').replaceChildren(...draw(GROUPS.filter(isFirst)));
  byId('more-fields').replaceChildren(...draw(GROUPS.filter((group) => !isFirst(group))));
  showForm();
}

/** Shows the values in the form, except in the control that is being used. */
export function showForm() {
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

/** Takes what a control of the form says now; whether it is of a setting. @param {any} input */
export function takeInput(input) {
  const key = input.dataset.slides ?? input.name, field = FIELDS.get(key);
  if (!field) return false;
  if (field.unit === 's') change(key, `${Math.round(Number(input.value) * 1000)}ms`);
  else change(key, input.type === 'checkbox' ? String(input.checked) : input.value);
  if (key === 'service') {
    if (input.value === 'redlock') chosen.fence = 'none';
    else change('step', '0ms');
  }
  showForm();
  return true;
}
