// @ts-check
// Routes in the fragment of the address: `#/VIEW/REST?PARAMETERS`. Names in it are percent-encoded.

/**
 * @typedef {object} Route
 * @property {string} view
 * @property {string} rest what follows the view, decoded
 * @property {Map<string, string>} parameters
 */

/** @returns {Route} */
export function currentRoute() {
  const hash = location.hash.replace(/^#\/?/, '');
  const at = hash.indexOf('?');
  const path = at < 0 ? hash : hash.slice(0, at);
  const slash = path.indexOf('/');
  const parameters = new Map();
  for (const pair of (at < 0 ? '' : hash.slice(at + 1)).split('&')) {
    const equals = pair.indexOf('=');
    if (equals > 0) parameters.set(decoded(pair.slice(0, equals)), decoded(pair.slice(equals + 1)));
  }
  const view = slash < 0 ? path : path.slice(0, slash);
  return { view: view === '' ? 'attention' : view, rest: slash < 0 ? '' : decoded(path.slice(slash + 1)), parameters };
}

/**
 * Changes the address without an entry in the browser's history and without leaving the view.
 *
 * @param {string} href
 */
export function replaceRoute(href) {
  history.replaceState(null, '', href);
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    // An address typed by hand may have a lone `%`.
    return text;
  }
}
