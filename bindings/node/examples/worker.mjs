// A queue's worker: any number of them take jobs from a list in Redis, and no two work for one customer at a time.
//
// A job stays in the list of its worker until it is done. A worker that has lost the lock does it again, and so does one
// that is started under the name of one that has died. A job's write goes through a fence, with the job's id: it is done
// once, also by a worker that was paused, or has died after its write.

import { LockLost, Stale } from "lockkeeper";
import { RedisFence, key } from "lockkeeper/fences/ioredis";

/** How long the ids of done jobs are kept, in seconds: for longer than any job is in a list. */
const IDS_KEPT = 7 * 24 * 3600;

/**
 * Works until `signal` aborts.
 *
 * @param {import('lockkeeper').FencedLocks} locks
 * @param {import('ioredis').Redis} redis a connection that nobody else uses: it waits for jobs
 * @param {import('ioredis').Redis} store with `autoResendUnfulfilledCommands: false`
 * @param {string} worker a name that no other running worker has
 * @param {AbortSignal} signal
 */
export async function work(locks, redis, store, worker, signal) {
  const fence = await RedisFence.connect(store);
  const taken = `jobs:taken:${worker}`;
  signal.addEventListener("abort", () => redis.disconnect());
  while (!signal.aborted) {
    try {
      const job = (await store.lindex(taken, 0)) ?? (await redis.blmove("jobs", taken, "LEFT", "RIGHT", 0));
      if (job === null) continue;
      const { id, customer, amount } = JSON.parse(job);
      await locks.mutex(`customers/${customer}`, { ttl: 10_000 }).run(
        async (guard) => {
          const [balance, done] = [`balance:{${customer}}`, `done:{${customer}}:${id}`];
          await fence.enter(customer, guard);
          if (await store.exists(done)) return;
          const old = Number((await store.get(balance)) ?? 0);
          await fence.write(customer, guard, [
            ["SET", key(balance), old + amount],
            ["SET", key(done), 1, "EX", IDS_KEPT],
          ]);
        },
        { signal },
      );
      await store.lrem(taken, 1, job);
    } catch (error) {
      // The job is still first in the list. Anything else is for whoever watches this worker.
      if (!(error instanceof Stale || error instanceof LockLost || signal.aborted)) throw error;
    }
  }
}
