// Locks, elections and partitions, as promises.

import assert from "node:assert/strict";
import { setTimeout as delay } from "node:timers/promises";
import { test } from "node:test";
import { createRequire } from "node:module";

import * as lockkeeper from "lockkeeper";
import { own, services, turn, unique } from "./support.mjs";

const { connect, LockLost } = lockkeeper;

for (const [service, url] of services) {
  test(`${service}: one at a time, and tokens rise`, async () => {
    const lock = (await connect(url)).fenced().mutex(unique());
    const tokens = [];
    let inside = 0;
    const work = async () => {
      for (let round = 0; round < 10; round++) {
        await lock.run(async ({ token }) => {
          assert.equal(++inside, 1);
          await turn();
          tokens.push(token);
          inside--;
        });
      }
    };
    await Promise.all(Array.from({ length: 8 }, work));
    assert.equal(tokens.length, 80);
    assert.ok(tokens.every((token, at) => at === 0 || token > tokens[at - 1]));
  });

  test(`${service}: aborted acquires leave nothing`, async () => {
    const locks = await connect(url);
    const lock = locks.mutex(unique());
    let aborted = 0;
    for (let round = 0; round < 100; round++) {
      const controllers = Array.from({ length: 4 }, () => new AbortController());
      const waits = controllers.map(async ({ signal }) => {
        try {
          await (await lock.acquire({ signal })).release();
        } catch (error) {
          assert.equal(error, signal.reason);
          aborted++;
        }
      });
      for (const controller of controllers) {
        if (round % 2) await turn();
        controller.abort();
      }
      await Promise.all(waits);
    }
    assert.ok(aborted > 0);
    await (await lock.acquire({ wait: 30_000 })).release();
    await locks.close();
  });
}

test("a wait for a lock that its caller holds is a deadlock", async () => {
  const locks = (await connect(own)).fenced();
  const name = unique();
  const guard = await locks.mutex(name).acquire();
  const again = locks.mutex(name, { holding: [guard.token] });
  await assert.rejects(again.acquire(), { name: "Deadlock", code: "DEADLOCK", message: /caller of this request holds/ });
  for (const holding of [[0], ["3"], 7, guard]) assert.throws(() => locks.mutex(name, { holding }).acquire(), { name: "InvalidOption" });
  await guard.release();
  await locks.close();
});

test("a lock that is held is not acquired", async () => {
  const locks = await connect(own, { label: "the holder" });
  const name = unique();
  const lock = locks.mutex(name);
  const guard = await lock.acquire();
  assert.equal(await lock.tryAcquire(), null);
  await assert.rejects(lock.acquire({ wait: false }), { name: "Busy", code: "BUSY", holder: "the holder" });
  await assert.rejects(lock.acquire({ wait: 50 }), { name: "AcquireTimeout", code: "TIMED_OUT" });
  await assert.rejects(lock.acquire({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  await assert.rejects(lock.acquire({ signal: AbortSignal.abort("why") }), (reason) => reason === "why");
  const few = locks.mutex(name, { maxWaiters: 1 });
  const waits = few.acquire();
  while ((await locks.inspect(name)).waiterCount < 1) await turn();
  await assert.rejects(few.acquire(), { name: "Busy", queuedAhead: 1 });
  guard.check();
  assert.throws(() => guard.check(10 * 60_000), LockLost);
  assert.ok(guard.validFor() > 0 && guard.validFor() <= 30_000);
  await guard.verify();
  await guard.release();
  assert.throws(() => guard.check(), { name: "Released" });
  await assert.rejects(guard.release(), { name: "Released" });
  await guard[Symbol.asyncDispose]();
  await (await waits).release();
});

test("a cached lock stays with its client until another asks", async () => {
  const [locks, other] = [await connect(own), await connect(own)];
  const name = unique();
  const lock = locks.fenced().mutex(name, { cached: true, cacheFor: 60_000 });
  let last = 0;
  for (let section = 0; section < 8; section++) {
    const guard = await lock.acquire();
    assert.ok(guard.token > last);
    last = guard.token;
    await guard.release();
  }
  assert.equal((await locks.inspect(name)).holdCount, 1);
  const taken = await other.mutex(name).tryAcquire();
  assert.ok(taken);
  await taken.release();
  assert.equal((await locks.inspect(name)).holdCount, 0);
  const redis = await connect(process.env.LOCKKEEPER_REDIS_URL);
  await assert.rejects(redis.mutex(name, { cached: true }).acquire(), { name: "Unsupported", what: "cache a lock" });
});

test("a loss aborts the signal and ends the section", async () => {
  const locks = (await connect(own)).fenced();
  const lock = locks.mutex(unique(), { maxHold: 200 });
  await assert.rejects(
    lock.run(({ signal }) => delay(60_000, undefined, { signal })),
    (error) => error instanceof LockLost && error.loss === "max-hold" && error.code === "LOCK_LOST",
  );
  // The section's own error comes first.
  await assert.rejects(
    lock.run(async ({ signal }) => {
      await delay(60_000, undefined, { signal }).catch(() => {});
      throw new RangeError("mine");
    }),
    RangeError,
  );
  // A section that does not look is told at its end.
  const seen = lock.run(async (guard) => {
    while (!guard.loss) await turn();
    assert.throws(() => guard.check(), LockLost);
    assert.throws(() => guard.validFor(), LockLost);
    assert.ok(guard.signal.aborted && guard.signal.reason === guard.loss);
    await assert.rejects(guard.verify(), LockLost);
  });
  await assert.rejects(seen, LockLost);
  const guard = await lock.acquire();
  await new Promise((resolve) => guard.signal.addEventListener("abort", resolve));
  await assert.rejects(guard.release(), LockLost);
});

test("a break is told with its reason", async () => {
  const locks = (await connect(own)).fenced();
  const name = unique();
  const guard = await locks.mutex(name).acquire();
  const [{ since, heldFor }] = (await locks.inspect(name)).holds;
  assert.ok(since instanceof Date && Math.abs(Date.now() - since) < 600_000 && heldFor >= 0, `${since} ${heldFor}`);
  assert.deepEqual(await locks.checkToken(name, guard.token), { status: "current", liveTokens: [guard.token] });
  const broken = await locks.breakHold(name, guard.token, { reason: "stuck", by: "ops" });
  assert.equal(broken.result, "done");
  while (!guard.signal.aborted) await turn();
  const { loss, brokenBy, reason } = guard.signal.reason;
  assert.deepEqual({ loss, brokenBy, reason }, { loss: "broken", brokenBy: "ops", reason: "stuck" });
});

test("locks are inspected", async () => {
  const locks = (await connect(own, { label: "me" })).fenced();
  const name = unique();
  const guard = await locks.mutex(name, { value: "here", meta: { job: "7" } }).acquire();
  const { holds, holdCount, waiterCount } = await locks.inspect(name);
  assert.deepEqual([holdCount, waiterCount, holds[0].token, holds[0].label], [1, 0, guard.token, "me"]);
  assert.deepEqual([holds[0].value.toString(), holds[0].meta, holds[0].state], ["here", { job: "7" }, "held"]);
  await guard.setValue("there");
  assert.deepEqual(
    (await locks.list(name)).map((lock) => lock.name),
    [name],
  );
  assert.equal((await locks.inspect(name)).holds[0].value.toString(), "there");
  await guard.release();
});

test("readers, permits, several at once", async () => {
  const locks = await connect(own);
  const name = unique();
  const readers = [await locks.read(name).acquire(), await locks.read(name).acquire()];
  assert.deepEqual(
    readers.map((guard) => guard.mode),
    ["shared", "shared"],
  );
  assert.equal(await locks.write(name).tryAcquire(), null);
  for (const reader of readers) await reader.release();
  const permits = locks.semaphore(name + "/permits", 2);
  const [one, two] = [await permits.acquire(), await permits.acquire()];
  assert.deepEqual([one.slot, two.slot].sort(), [0, 1]);
  assert.equal(await permits.tryAcquire(), null);
  const both = await locks.all([name + "/a", name + "/b"]).acquire();
  assert.equal(await locks.mutex(name + "/b").tryAcquire(), null);
  const below = await locks.mutex(name + "/c", { subtree: true }).acquire();
  assert.equal(await locks.mutex(name + "/c/d").tryAcquire(), null);
  await locks.rate(name + "/rate", 1, 60_000).run(() => {});
  assert.equal(await locks.rate(name + "/rate", 1, 60_000).tryAcquire(), null);
  await locks.striped(name + "/striped", 4, "key").run(() => {});
  for (const guard of [one, two, both, below]) await guard.release();
});

test("elections and partitions", async () => {
  const locks = (await connect(own, { label: "first" })).fenced();
  const name = unique();
  const election = locks.election(name);
  await election.lead(
    async (guard) => {
      const leader = await election.leader();
      assert.deepEqual([leader.token, leader.label, leader.value.toString()], [guard.token, "first", "here"]);
      for await (const seen of election.observe()) {
        assert.equal(seen.token, guard.token);
        break;
      }
    },
    { value: "here" },
  );
  const member = await locks.partitions(name + "/parts", 2).join();
  const mine = new Map();
  for await (const partition of member) {
    assert.equal(partition.isLeaving, false);
    mine.set(partition.index, partition);
    if (mine.size === 2) break;
  }
  assert.equal(await member.next({ timeout: 10 }), null);
  // A release ends the wait for a wish of others.
  const first = mine.get(0);
  const wished = first.leaving();
  await first.release();
  await wished;
  mine.set(0, await member.next());
  const leaving = [...mine.values()].map(async (partition) => {
    await partition.leaving();
    await partition.release();
  });
  await using(locks.partitions(name + "/parts", 2).join(), async (other) => {
    const waits = assert.rejects(member.next(), { name: "Released" });
    await member.leave();
    await Promise.all([waits, ...leaving]);
    const indexes = [];
    for await (const partition of other) {
      indexes.push(partition.index);
      await using(partition, () => {});
      if (new Set(indexes).size === 2) break;
    }
  });
});

/** `await using`, which Node 24 has. */
async function using(made, section) {
  const resource = await made;
  try {
    await section(resource);
  } finally {
    await resource[Symbol.asyncDispose]();
  }
}

test("work is done once for each key", async () => {
  const store = await lockkeeper.records(process.env.LOCKKEEPER_REDIS_URL.split("?")[0]);
  const [key, lock] = [unique(), (await connect(own)).mutex(unique())];
  let done = 0;
  const work = async () => `message ${++done}`;
  const results = await Promise.all(Array.from({ length: 4 }, () => lock.once(key, store, work)));
  assert.deepEqual(
    results.map(({ outcome }) => outcome.toString()),
    Array(4).fill("message 1"),
  );
  assert.equal(results.filter(({ isNew }) => isNew).length, 1);
  await assert.rejects(lock.once("", store, work), { name: "InvalidOption", option: "key" });
  await assert.rejects(lockkeeper.records("mysql://x"), { name: "InvalidOption", option: "url" });
  const failing = () => Promise.reject(new RangeError("mine"));
  await assert.rejects(lock.once(unique(), store, failing), RangeError);
  const twice = lock.once(key + "/twice", store, async () => {
    await store.put(key + "/twice", "another", Buffer.from("first"));
    return "second";
  });
  await assert.rejects(twice, (error) => error.code === "DONE_TWICE" && error.outcome.toString() === "first");
});

test("errors say what was wrong, and what to do", async () => {
  await assert.rejects(connect("cassandra://localhost"), (error) => {
    assert.ok(error instanceof lockkeeper.InvalidUrl && error instanceof lockkeeper.LockkeeperError);
    return error.code === "INVALID_URL" && error.name === "InvalidUrl" && error.message.includes("cassandra");
  });
  const locks = await connect(own);
  await assert.rejects(locks.mutex("a").acquire({ timeout: 1000 }), { name: "InvalidOption", option: "timeout" });
  await assert.rejects(
    locks.mutex("a").run(() => {}, { timeout: 1000 }),
    { name: "InvalidOption", option: "timeout", limit: "signal, wait" },
  );
  assert.throws(() => locks.mutex("a", { ttl: Infinity }), { name: "InvalidOption", option: "ttl" });
  assert.throws(() => locks.mutex("a", { tll: 1 }), { name: "InvalidOption", option: "tll" });
  assert.throws(() => locks.mutex("a", { ttl: -1 }), { name: "InvalidOption", option: "ttl", value: "-1" });
  assert.throws(() => locks.mutex("a", { ttl: "10 s" }), { name: "InvalidOption", option: "ttl", value: "10 s" });
  assert.throws(() => locks.mutex("a", { ttl: NaN }), { name: "InvalidOption", option: "ttl" });
  for (const maxWaiters of [-1, 1.5, 2 ** 32, "3", null]) {
    assert.throws(() => locks.mutex("a", { maxWaiters }), { name: "InvalidOption", value: String(maxWaiters) });
  }
  const redis = await connect(process.env.LOCKKEEPER_REDIS_URL);
  await assert.rejects(redis.mutex("a", { maxWaiters: 3 }).acquire(), {
    name: "Unsupported",
    backend: "redis",
    what: "limit the number of waiters",
  });
  await assert.rejects(locks.mutex("a", { ttl: 1 }).acquire(), (error) => /ttl/.test(error.message));
  await assert.rejects(locks.mutex("").acquire(), { name: "InvalidName", code: "INVALID_NAME" });
  await assert.rejects(locks.mutex("a").acquire({ wait: "long" }), { name: "InvalidOption", option: "wait" });
  assert.throws(() => locks.mutex(7), { name: "TypeError", code: "ERR_INVALID_ARG_TYPE" });
  await assert.rejects(connect(undefined), TypeError);
  const memory = await connect("memory:");
  await assert.rejects(memory.breakHold("a", 1.5, { reason: "x", by: "y" }), {
    name: "InvalidOption",
    option: "token",
  });
  await locks.close();
  await assert.rejects(locks.mutex("a").acquire(), { name: "AcquireError" });
});

test("a guard that is garbage is still held", async () => {
  const lock = (await connect(own)).mutex(unique());
  (await lock.acquire()).unref();
  for (let round = 0; round < 5; round++) {
    global.gc();
    await turn();
  }
  assert.equal(await lock.tryAcquire(), null);
});

test("both kinds of modules are one package", () => {
  const required = createRequire(import.meta.url)("lockkeeper");
  assert.equal(required.connect, connect);
  const names = Object.keys(required).sort();
  assert.deepEqual(Object.keys(lockkeeper).sort(), names);
});
