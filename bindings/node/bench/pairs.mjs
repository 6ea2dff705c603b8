// Pairs of acquire and release on free locks: by this package, and by node-redlock on its server.
//
//     node pairs.mjs lockkeeper lockkeeper://127.0.0.1:5625 64 5
//     node pairs.mjs redlock redis://127.0.0.1:6379 64 5
//
// Arguments: whose, the URL, the clients, the seconds. Prints the pairs per second of all clients, and the
// median of one pair in microseconds. Each client has its own lock; all are promises on one client.

import { performance } from "node:perf_hooks";

const [whose, url, clients = "1", seconds = "5"] = process.argv.slice(2);

const makers = {
  async lockkeeper() {
    const { connect } = await import("lockkeeper");
    const locks = await connect(url);
    return [(name) => pairOf(locks.mutex(name, { ttl: 10_000 })), () => locks.close()];
  },
  async redlock() {
    const [{ default: Redlock }, { default: Redis }] = [await import("redlock"), await import("ioredis")];
    const redis = new Redis(url);
    const redlock = new Redlock([redis]);
    return [(name) => async () => (await redlock.acquire([name], 10_000)).release(), () => redis.quit()];
  },
};

function pairOf(lock) {
  return async () => (await lock.acquire()).release();
}

const [maker, end] = await makers[whose]();
const until = performance.now() + Number(seconds) * 1_000;
const took = [];
await Promise.all(
  Array.from({ length: Number(clients) }, async (_, client) => {
    const pair = maker(`bench/${client}`);
    for (let start = performance.now(); start < until; ) {
      await pair();
      const now = performance.now();
      took.push(now - start);
      start = now;
    }
  }),
);
took.sort((one, other) => one - other);
const median = Math.round(took[took.length >> 1] * 1_000);
console.log(`${whose}, ${clients} clients: ${Math.round(took.length / Number(seconds))} pairs/s, p50 ${median} us`);
await end();
