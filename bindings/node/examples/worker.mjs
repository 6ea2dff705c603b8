// A queue's worker: any number of them take jobs from a list in Redis, and no two work for one customer at a time.
//
// The job stays in the list of its worker until it is done, so a job of a worker that has died is done again. Its
// write goes through a fence: a worker that was paused, and whose job another one has done meanwhile, changes nothing.

import { LockLost, Stale } from "lockkeeper";
import { RedisFence, key } from "lockkeeper/fences/ioredis";

/**
 * Works until `signal` aborts.
 *
 * @param {import('lockkeeper').FencedLocks} locks
 * @param {import('ioredis').Redis} redis a connection that nobody else uses: it waits for jobs
 * @param {import('ioredis').Redis} store
 * @param {AbortSignal} signal
 */
export async function work(locks, redis, store, signal) {
  const fence = await RedisFence.connect(store);
  signal.addEventListener("abort", () => redis.disconnect());
  while (!signal.aborted) {
    const job = await redis.blmove("jobs", "jobs:taken", "LEFT", "RIGHT", 0).catch(() => null);
    if (job === null) continue;
    const { customer, amount } = JSON.parse(job);
    try {
      await locks.mutex(`customers/${customer}`, { ttl: 10_000 }).run(
        async (guard) => {
          const balance = `balance:{${customer}}`;
          await fence.enter(customer, guard);
          const old = Number((await store.get(balance)) ?? 0);
          await fence.write(customer, guard, [["SET", key(balance), old + amount]]);
        },
        { signal },
      );
      await store.lrem("jobs:taken", 1, job);
    } catch (error) {
      // It is another worker's by now. Anything else is for whoever watches this worker.
      if (!(error instanceof Stale || error instanceof LockLost || signal.aborted)) throw error;
    }
  }
}
