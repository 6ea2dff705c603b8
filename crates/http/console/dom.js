// @ts-check
// Builds the DOM. All text from the service goes through text nodes and attributes here, so that none of it is read as HTML.

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 */

/** Set as properties: as attributes they would give the initial value only. */
const PROPERTIES = new Set(['value', 'checked', 'disabled', 'hidden', 'open', 'selected', 'indeterminate']);

/**
 * Makes an element.
 *
 * @param {string} tag
 * @param {Record<string, any>} [attributes] `on…` adds a listener; undefined, null and false are left out
 * @param {...(Child | Child[])} children
 * @returns {any} the element; `any`, since the tag gives its type
 */
export function el(tag, attributes = {}, ...children) {
  const element = /** @type {any} */ (document.createElement(tag));
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (PROPERTIES.has(key)) element[key] = value;
    else if (value !== false) element.setAttribute(key, value === true ? '' : String(value));
  }
  element.append(...kept(children.flat()));
  return element;
}

/**
 * Replaces the content of an element.
 *
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren(...kept(children.flat()));
}

/**
 * Sets text only if it differs: a write makes the browser lay out again.
 *
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Text of a client, such as a name or a label. Isolated, so that right-to-left text does not reorder what is beside it.
 *
 * @param {string} text
 * @param {string} [className]
 */
export function foreign(text, className = '') {
  return el('bdi', { class: `foreign ${className}`, dir: 'auto', title: visible(text) }, visible(text));
}

/**
 * A lock's name. Each segment is isolated, so that their order is that of the name in every script.
 *
 * @param {string} name
 * @param {string} [className]
 */
export function nameText(name, className = '') {
  const shown = visible(name);
  return el('span', { class: `foreign ${className}`, title: shown }, nameParts(shown));
}

/**
 * The parts of a name that was made visible: one text, or where it has right-to-left letters, its segments.
 *
 * @param {string} shown
 * @returns {(Node | string)[]}
 */
export function nameParts(shown) {
  if (!RIGHT_TO_LEFT.test(shown)) return [shown];
  return shown.split('/').flatMap((segment, index) => [index === 0 ? '' : '/', el('bdi', { dir: 'auto' }, segment)]);
}

/**
 * Text with its invisible characters shown as `‹U+202E›`: with them one name could look like another.
 *
 * @param {string} text
 */
export function visible(text) {
  return text.replace(INVISIBLE, (char) => `‹U+${(char.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')}›`);
}

const RIGHT_TO_LEFT = /[\u0590-\u08FF\uFB1D-\uFDFF\uFE70-\uFEFC]/;
/** Control characters but tab and newline, marks of direction, blanks that look like nothing; not joiners, which belong to some scripts. */
const INVISIBLE = /(?![\t\n\u200C\u200D])[\p{Cc}\p{Bidi_Control}\p{Default_Ignorable_Code_Point}\u2028\u2029]/gu;

/**
 * A page's block with a heading.
 *
 * @param {string} heading
 * @param {Child | Child[]} aside what stands at the right of the heading
 * @param {...(Child | Child[])} children
 */
export function panel(heading, aside, ...children) {
  const id = `h${++headings}`;
  return el(
    'section',
    { class: 'panel', 'aria-labelledby': id },
    el('div', { class: 'panel-head' }, el('h2', { id }, heading), el('div', { class: 'aside' }, aside)),
    children.flat(),
  );
}

let headings = 0;

/**
 * @param {Child[]} children
 * @returns {(Node | string)[]}
 */
function kept(children) {
  const kept = [];
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    kept.push(typeof child === 'number' ? String(child) : child);
  }
  return kept;
}
