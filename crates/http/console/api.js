// @ts-check
// Calls of the service. Every call has a time-out, and ends when the view that made it is left.

import { forget, token } from './token.js';

/** How long a call may take, in milliseconds. */
const TIMEOUT_MS = 10_000;

/** A call that failed. `kind` says where: in the network, by time-out, or by an answer of the service. */
export class Problem extends Error {
  /**
   * @param {'network' | 'timeout' | 'answer'} kind
   * @param {number} status the HTTP status; 0 without an answer
   * @param {string} code the problem's code; for programs
   * @param {string} detail what was wrong, for people
   */
  constructor(kind, status, code, detail) {
    super(detail);
    this.kind = kind;
    this.status = status;
    this.code = code;
    this.detail = detail;
  }
}

/** Fires `unauthenticated`, with the problem as `detail`. */
export const access = new EventTarget();

/**
 * Whether an error only says that the caller has aborted its call.
 *
 * @param {unknown} error
 */
export function isAbort(error) {
  return error instanceof DOMException && error.name === 'AbortError';
}

/**
 * Any error as a problem, to show it.
 *
 * @param {unknown} error
 * @returns {Problem}
 */
export function asProblem(error) {
  return error instanceof Problem ? error : new Problem('network', 0, '', String(error));
}

/**
 * Reads.
 *
 * @param {string} path relative to the page
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} the answer's JSON
 */
export async function get(path, signal) {
  return withTimeout(signal, async (both) => json(await answered(path, { signal: both })));
}

/**
 * Orders something.
 *
 * @param {string} path relative to the page
 * @param {object} body
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} the answer's JSON
 */
export async function post(path, body, signal) {
  const headers = { 'Content-Type': 'application/json' };
  const options = { method: 'POST', headers, body: JSON.stringify(body) };
  return withTimeout(signal, async (both) => json(await answered(path, { ...options, signal: both })));
}

/**
 * Starts to read a stream. The signal ends it; there is a time-out for its head only.
 *
 * @param {string} path relative to the page
 * @param {AbortController} controller
 * @returns {Promise<ReadableStream<Uint8Array>>}
 */
export async function stream(path, controller) {
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    controller.abort();
  }, TIMEOUT_MS);
  try {
    const response = await answered(path, { signal: controller.signal });
    if (response.body === null) throw new Problem('answer', response.status, '', 'the answer has no body');
    return response.body;
  } catch (error) {
    throw isLate ? late() : error;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * @param {AbortSignal | undefined} signal
 * @param {(both: AbortSignal) => Promise<any>} call
 */
async function withTimeout(signal, call) {
  const controller = new AbortController();
  const abort = () => controller.abort();
  if (signal?.aborted) abort();
  signal?.addEventListener('abort', abort);
  const timer = setTimeout(abort, TIMEOUT_MS);
  try {
    return await call(controller.signal);
  } catch (error) {
    throw isAbort(error) && !signal?.aborted ? late() : error;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', abort);
  }
}

/**
 * @param {string} path
 * @param {RequestInit} options
 */
async function answered(path, options) {
  const shown = token();
  const headers = { ...options.headers, ...(shown === '' ? {} : { Authorization: `Bearer ${shown}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: 'no-store', credentials: 'same-origin', redirect: 'error' });
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new Problem('network', 0, '', 'The node does not answer. Check that it runs, and the way to it.');
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  // Only the token that this call has shown was refused, not one that was typed in meanwhile.
  if (problem.status === 401 && shown === token()) {
    forget();
    access.dispatchEvent(new CustomEvent('unauthenticated', { detail: { problem, hadToken: shown !== '' } }));
  }
  throw problem;
}

/** @param {Response} response */
async function json(response) {
  try {
    return await response.json();
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new Problem('answer', response.status, '', 'The answer is not JSON: is there a proxy that answers for the node?');
  }
}

/** @param {Response} response */
async function problemOf(response) {
  const { status } = response;
  try {
    const { code, detail } = await response.json();
    if (typeof detail === 'string') return new Problem('answer', status, String(code ?? ''), detail);
  } catch (error) {
    if (isAbort(error)) throw error;
  }
  const title = response.statusText === '' ? '' : ` (${response.statusText})`;
  return new Problem('answer', status, '', `The answer has status ${status}${title} and no explanation.`);
}

function late() {
  const text = `There was no answer within ${TIMEOUT_MS / 1_000} s. A reading call may be repeated; after an order, look whether it has had its effect.`;
  return new Problem('timeout', 0, 'deadline-exceeded', text);
}
