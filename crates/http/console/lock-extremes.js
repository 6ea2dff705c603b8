// @ts-check
// The few of all locks that somebody should look at first, found in one pass.

/** @typedef {import('./lock-model.js').Lock} Lock */
/** @typedef {import('./lock-model.js').Hold} Hold */
/** @typedef {{ lock: Lock, hold: Hold | undefined, value: number }} Extreme `value`: what it was chosen by */

/**
 * The greatest few, in order; of equal ones the lower token, so that the order is always the same. With 200,000
 * candidates nearly all fail the first comparison.
 */
class Top {
  /** @type {Extreme[]} */
  items = [];
  #most;

  /** @param {number} most */
  constructor(most) {
    this.#most = most;
  }

  /**
   * @param {Lock} lock
   * @param {Hold | undefined} hold
   * @param {number} value
   */
  add(lock, hold, value) {
    const { items } = this;
    const token = hold?.token ?? 0;
    const isAfter = (/** @type {Extreme} */ it) => it.value < value || (it.value === value && (it.hold?.token ?? 0) > token);
    if (items.length === this.#most && !isAfter(items[items.length - 1])) return;
    const at = items.findIndex(isAfter);
    items.splice(at < 0 ? items.length : at, 0, { lock, hold, value });
    if (items.length > this.#most) items.pop();
  }
}

/**
 * @param {Iterable<Lock>} locks
 * @param {number} most in each list
 */
export function extremesOf(locks, most) {
  const [oldest, queued, breaking, closed] = [new Top(most), new Top(most), new Top(most), new Top(most)];
  const counts = { queued: 0, breaking: 0, closed: 0 };
  for (const lock of locks) {
    /** @type {Hold | undefined} */
    let first;
    /** @type {Hold | undefined} */
    let revoked;
    /** @type {Hold | undefined} */
    let kept;
    for (const hold of lock.holds) {
      if (hold.state === 'closed') kept ??= hold;
      else if (first === undefined || hold.grantedAt < first.grantedAt) first = hold;
      if (hold.state === 'revoked') revoked ??= hold;
    }
    // Of a lock with many holds the oldest counts, else a single semaphore would fill the list.
    if (first !== undefined && !Number.isNaN(first.grantedAt)) oldest.add(lock, first, -first.grantedAt);
    if (lock.waiterCount > 0) {
      counts.queued += 1;
      queued.add(lock, first ?? kept, lock.waiterCount);
    }
    if (revoked !== undefined) {
      counts.breaking += 1;
      breaking.add(lock, revoked, -revoked.grantedAt);
    } else if (kept !== undefined) {
      counts.closed += 1;
      closed.add(lock, kept, kept.closedUntil);
    }
  }
  return { oldest: oldest.items, queued: queued.items, breaking: breaking.items, closed: closed.items, counts };
}
