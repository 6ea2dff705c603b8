// @ts-check
// The bearer token of this tab. In sessionStorage only: it ends with the tab, and other tabs do not get it.

const KEY = 'lockkeeper-token';

/** Without storage, as where cookies are blocked, the token lives until the page is loaded again. */
let inMemory = '';

/** The token; empty: none. */
export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? inMemory;
  } catch {
    return inMemory;
  }
}

/** @param {string} value */
export function keep(value) {
  inMemory = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // It stays in memory.
  }
}

export function forget() {
  inMemory = '';
  try {
    sessionStorage.removeItem(KEY);
  } catch {
    // There is none.
  }
}
