// @ts-check
// A watch of the locks at and below a name, which reconnects by itself.

import { asProblem, Problem, stream } from './api.js';
import { readEvents } from './sse.js';
import { encoded } from './names.js';

/** The first wait before a new connection, in milliseconds; it doubles up to the greatest. */
const BACKOFF_MIN_MS = 500;
const BACKOFF_MAX_MS = 15_000;
/** The service sends a comment after 15 s without an event. Twice that and some: the connection is dead. */
const SILENCE_MAX_MS = 40_000;
/** Connections that fail in a row until the page says "offline". */
const OFFLINE_AFTER = 4;
/**
 * A page that is hidden for this long, in milliseconds, gives its connection up until it is looked at again: browsers have about six
 * for a node, for all tabs together, and calls of other tabs would wait for one.
 */
const HIDDEN_MAX_MS = 20_000;
/** A connection that lived this long, in milliseconds, starts the backoff from its beginning. */
const GOOD_AFTER_MS = 5_000;

/**
 * @typedef {object} WatchStatus
 * @property {'connecting' | 'loading' | 'live' | 'reconnecting' | 'offline' | 'refused' | 'signed-out'} state
 * @property {number} since when the connection was lost or made, in milliseconds since 1970
 * @property {number} retryAt when the next one is tried, in milliseconds since 1970; 0: not by itself
 * @property {Problem | null} problem why the last one ended
 */

/**
 * @typedef {object} WatchHandler
 * @property {() => void} begin a new connection delivers the whole state
 * @property {(lock: any) => void} state
 * @property {(lock: any) => void} changed
 * @property {() => void} synced the state is complete
 * @property {(status: WatchStatus) => void} status
 */

export class Watch {
  /** @type {AbortController | null} */
  #controller = null;
  #timer = 0;
  #hiddenTimer = 0;
  #failures = 0;
  #lostAt = 0;
  #isStopped = false;
  #prefix;
  #handler;
  /** @type {WatchStatus} */
  status = { state: 'connecting', since: Date.now(), retryAt: 0, problem: null };

  /**
   * @param {string} prefix the name at and below which locks are watched; empty: all
   * @param {WatchHandler} handler
   */
  constructor(prefix, handler) {
    this.#prefix = prefix;
    this.#handler = handler;
    // `online`: a laptop that wakes up need not wait for the backoff.
    addEventListener('online', this.#atOnce);
    document.addEventListener('visibilitychange', this.#onVisibility);
    this.retry();
  }

  get prefix() {
    return this.#prefix;
  }

  /** Connects now. */
  retry() {
    if (this.#isStopped) return;
    clearTimeout(this.#timer);
    this.#controller?.abort();
    void this.#connect();
  }

  /** Ends the watch for good. */
  stop() {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#hiddenTimer);
    this.#controller?.abort();
    removeEventListener('online', this.#atOnce);
    document.removeEventListener('visibilitychange', this.#onVisibility);
  }

  #onVisibility = () => {
    clearTimeout(this.#hiddenTimer);
    if (document.hidden) this.#hiddenTimer = setTimeout(() => this.#rest(), HIDDEN_MAX_MS);
    else this.#atOnce();
  };

  /** Ends the connection until the page is looked at again. */
  #rest() {
    if (this.status.state === 'refused' || this.status.state === 'signed-out') return;
    clearTimeout(this.#timer);
    this.#controller?.abort();
    this.#controller = null;
    if (this.#lostAt === 0) this.#lostAt = Date.now();
    this.#say('reconnecting', this.#lostAt, Date.now());
  }

  #atOnce = () => {
    const { retryAt } = this.status;
    if (retryAt > 0 && document.visibilityState === 'visible') this.retry();
  };

  async #connect() {
    const controller = new AbortController();
    this.#controller = controller;
    const isCurrent = () => this.#controller === controller && !this.#isStopped;
    const startedAt = Date.now();
    if (this.#lostAt === 0) this.#say('connecting', startedAt);
    let heardAt = startedAt;
    const silence = setInterval(() => {
      if (Date.now() - heardAt > SILENCE_MAX_MS) controller.abort();
    }, SILENCE_MAX_MS / 8);
    /** @type {Problem} */
    let problem;
    try {
      const body = await stream(`v1/watch?prefix=${encoded(this.#prefix)}`, controller);
      if (!isCurrent()) return;
      this.#say('loading', Date.now());
      this.#handler.begin();
      await readEvents(
        body,
        (event, data) => isCurrent() && this.#take(event, data),
        () => (heardAt = Date.now()),
      );
      problem = new Problem('network', 0, '', 'The node has ended the connection.');
    } catch (error) {
      problem = error instanceof Problem ? error : lost(error);
    } finally {
      clearInterval(silence);
      controller.abort();
    }
    if (isCurrent()) this.#lose(problem, Date.now() - startedAt > GOOD_AFTER_MS);
  }

  /**
   * @param {string} event
   * @param {string} data
   */
  #take(event, data) {
    const value = JSON.parse(data);
    if (event === 'changed') this.#handler.changed(value);
    else if (event === 'state') this.#handler.state(value);
    else if (event === 'synced') {
      this.#lostAt = 0;
      this.#handler.synced();
      this.#say('live', Date.now());
    } else if (event === 'error') {
      throw new Problem('answer', Number(value.status) || 0, String(value.code ?? ''), String(value.detail ?? ''));
    }
  }

  /**
   * @param {Problem} problem
   * @param {boolean} wasGood
   */
  #lose(problem, wasGood) {
    const now = Date.now();
    if (this.#lostAt === 0) this.#lostAt = now;
    if (problem.status === 401) return this.#say('signed-out', this.#lostAt, 0, problem);
    if (problem.status >= 400 && problem.status < 500 && problem.status !== 429 && problem.status !== 408) {
      return this.#say('refused', this.#lostAt, 0, problem);
    }
    this.#failures = wasGood ? 1 : this.#failures + 1;
    const longest = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** (this.#failures - 1));
    // Spread, so that the pages of a whole team do not come back to a restarted node at one moment.
    const wait = longest * (0.5 + Math.random() / 2);
    this.#timer = setTimeout(() => this.retry(), wait);
    this.#say(this.#failures >= OFFLINE_AFTER ? 'offline' : 'reconnecting', this.#lostAt, now + wait, problem);
  }

  /**
   * @param {WatchStatus['state']} state
   * @param {number} since
   * @param {number} retryAt
   * @param {Problem | null} problem
   */
  #say(state, since, retryAt = 0, problem = null) {
    this.status = { state, since, retryAt, problem };
    this.#handler.status(this.status);
  }
}

/** @param {unknown} error */
function lost(error) {
  const text = 'The connection to the node was lost.';
  return error instanceof SyntaxError ? asProblem(error) : new Problem('network', 0, '', text);
}
