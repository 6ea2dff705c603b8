// One leader among the processes of a service. It leads until it stops, dies, or loses the election's lock; then
// another one leads.

import { setTimeout as delay } from "node:timers/promises";

import { LockLost } from "lockkeeper";

/**
 * @param {import('lockkeeper').FencedLocks} locks
 * @param {string} name
 * @param {(token: number) => Promise<void>} tick what only the leader does
 * @param {AbortSignal} signal
 */
export async function leadForever(locks, name, tick, signal) {
  const election = locks.election(name, { ttl: 5_000 });
  while (!signal.aborted) {
    try {
      await election.lead(
        async (guard) => {
          const stops = AbortSignal.any([signal, guard.signal]);
          while (!stops.aborted) {
            await tick(guard.token);
            await delay(100, undefined, { signal: stops }).catch(() => {});
          }
        },
        { value: String(process.pid), signal },
      );
    } catch (error) {
      if (!(error instanceof LockLost || signal.aborted)) throw error;
    }
  }
}
