// @ts-check
// All locks in use, as the watch tells of them. One store lives as long as the page; views subscribe to it.

import { isUsed, lockOf } from './lock-model.js';
import { changesOf } from './changes.js';
import { History } from './history.js';
import { covers } from './names.js';
import { Watch } from './watch.js';

/** @typedef {import('./lock-model.js').Lock} Lock */
/** @typedef {(name: string, lock: Lock | null) => void} OnLock */

/** The most locks that are kept. */
export const LOCKS_MAX = 200_000;

class LockStore {
  /** @type {Map<string, Lock>} */
  locks = new Map();
  history = new History();
  /** Whether there are more locks than are kept. */
  isTruncated = false;
  /** Whether the whole state has arrived at least once since the names that are watched were last chosen. */
  hasSynced = false;
  /** Changes since the page was opened. */
  changeCount = 0;
  /** The connections so far. */
  #run = 0;
  /** @type {Set<OnLock>} */
  #onLock = new Set();
  /** @type {Set<() => void>} */
  #onStatus = new Set();
  /** @type {Watch | null} */
  #watch = null;

  /** The name at and below which locks are watched; empty: all. */
  get scope() {
    return this.#watch?.prefix ?? '';
  }

  /** @returns {import('./watch.js').WatchStatus} */
  get status() {
    return this.#watch?.status ?? { state: 'connecting', since: Date.now(), retryAt: 0, problem: null };
  }

  /**
   * Watches the locks at and below a name.
   *
   * @param {string} scope empty: all
   */
  watch(scope) {
    if (this.#watch !== null && this.#watch.prefix === scope) return;
    this.#watch?.stop();
    for (const name of this.locks.keys()) this.#tell(name, null);
    this.locks.clear();
    this.isTruncated = false;
    this.hasSynced = false;
    this.#watch = new Watch(scope, {
      begin: () => this.#begin(),
      state: (json) => this.#take(json),
      changed: (json) => {
        this.changeCount += 1;
        this.#take(json);
      },
      synced: () => this.#synced(),
      status: () => this.#onStatus.forEach((listener) => listener()),
    });
    this.#onStatus.forEach((listener) => listener());
  }

  /** Forgets everything and watches again, as after another identity has signed in. */
  restart() {
    const { scope } = this;
    this.history = new History();
    this.#watch?.stop();
    this.#watch = null;
    this.watch(scope);
  }

  /**
   * Calls `listener` when a lock changes, also where the names that are watched do not include it.
   *
   * @param {string} name
   * @param {() => void} listener
   * @param {AbortSignal} signal ends it
   */
  onName(name, listener, signal) {
    this.onLock((changed) => changed === name && listener(), signal);
    /** @type {Watch | null} */
    let own = null;
    const check = () => {
      if (own !== null || this.#isCovered(name)) return;
      own = this.#watchOne(name, listener);
    };
    check();
    this.onStatus(check, signal);
    signal.addEventListener('abort', () => own?.stop());
  }

  /**
   * Whether the watch of all includes a name.
   *
   * @param {string} name
   */
  #isCovered(name) {
    return covers(this.scope, name) && this.status.state !== 'refused';
  }

  /**
   * @param {string} name
   * @param {() => void} listener
   */
  #watchOne(name, listener) {
    /** @type {Lock | null | undefined} */
    let old;
    const take = (/** @type {any} */ json) => {
      if (json.name !== name) return;
      const lock = lockOf(json, 0);
      const now = isUsed(lock) ? lock : null;
      if (old !== undefined && !this.#isCovered(name)) for (const change of changesOf(old, now)) this.history.add(name, change, false);
      old = now;
      listener();
    };
    const synced = () => {
      old ??= null;
      listener();
    };
    return new Watch(name, { begin: () => {}, state: take, changed: take, synced, status: () => {} });
  }

  /** Connects again, now. */
  retry() {
    this.#watch?.retry();
  }

  /**
   * Calls `listener` at each change, at once: it must be quick. `null`: the lock is free.
   *
   * @param {OnLock} listener
   * @param {AbortSignal} signal ends it
   */
  onLock(listener, signal) {
    this.#onLock.add(listener);
    signal.addEventListener('abort', () => this.#onLock.delete(listener));
  }

  /**
   * Calls `listener` when the state of the connection changes.
   *
   * @param {() => void} listener
   * @param {AbortSignal} [signal] ends it
   */
  onStatus(listener, signal) {
    this.#onStatus.add(listener);
    signal?.addEventListener('abort', () => this.#onStatus.delete(listener));
  }

  #begin() {
    this.#run += 1;
    this.isTruncated = false;
  }

  /** @param {any} json */
  #take(json) {
    const lock = lockOf(json, this.#run);
    const { name } = lock;
    const old = this.locks.get(name);
    const used = isUsed(lock);
    if (old === undefined) {
      if (!used) return;
      if (this.locks.size >= LOCKS_MAX) {
        this.isTruncated = true;
        return;
      }
    }
    // Without a complete earlier state nothing is known to have changed.
    if (this.hasSynced) this.#record(name, old, lock);
    if (used) this.locks.set(name, lock);
    else this.locks.delete(name);
    this.#tell(name, used ? lock : null);
  }

  #synced() {
    // Locks of which this connection has not told became free while there was none.
    for (const [name, old] of this.locks) {
      if (old.run === this.#run) continue;
      this.locks.delete(name);
      this.#record(name, old, null);
      this.#tell(name, null);
    }
    this.hasSynced = true;
  }

  /**
   * @param {string} name
   * @param {Lock | undefined} old
   * @param {Lock | null} lock
   */
  #record(name, old, lock) {
    const isLate = this.status.state !== 'live';
    for (const change of changesOf(old ?? null, lock)) this.history.add(name, change, isLate);
  }

  /**
   * @param {string} name
   * @param {Lock | null} lock
   */
  #tell(name, lock) {
    for (const listener of this.#onLock) listener(name, lock);
  }
}

export const store = new LockStore();
