// Event loops that are blocked, threads, and processes that end.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { Worker } from "node:worker_threads";

import { connect, LockLost } from "lockkeeper";
import { block, own, program, unique } from "./support.mjs";

const TTL = 1000;

test("renewals go on while the event loop is blocked", async () => {
  const locks = (await connect(own)).fenced();
  const lock = locks.mutex(unique(), { ttl: TTL });
  await lock.run(async (guard) => {
    block(3 * TTL);
    guard.check();
    await guard.verify();
    assert.equal(guard.signal.aborted, false);
  });
});

test("a loss is seen by `check` while the event loop is blocked", async () => {
  const guard = await (await connect(own)).mutex(unique(), { maxHold: 200 }).acquire();
  assert.throws(() => {
    for (;;) guard.check();
  }, LockLost);
  assert.equal(guard.signal.aborted, false);
  await once(guard.signal, "abort");
  assert.ok(guard.signal.reason instanceof LockLost);
});

test("worker threads have clients of their own, and give up what they hold when they end", async () => {
  const name = unique();
  const text = `
    const { parentPort, workerData } = require('node:worker_threads')
    const { connect } = require('lockkeeper')
    ;(async () => {
      const locks = (await connect(workerData.url)).fenced()
      for (let round = 0; round < 20; round++) {
        await locks.mutex(workerData.name).run(({ token }) => parentPort.postMessage(token))
      }
      if (workerData.keeps) {
        await locks.mutex(workerData.name, { ttl: 60_000 }).acquire()
        parentPort.postMessage('held')
      }
    })()`;
  const tokens = [];
  const ends = (keeps) => {
    const worker = new Worker(text, { eval: true, workerData: { url: own, name, keeps } });
    return new Promise((resolve, reject) => {
      worker.on("error", reject);
      worker.on("exit", resolve);
      worker.on("message", (message) => {
        if (message === "held") worker.terminate();
        else tokens.push(message);
      });
    });
  };
  await Promise.all([ends(false), ends(false), ends(false)]);
  await ends(true);
  assert.equal(tokens.length, 80);
  assert.equal(new Set(tokens).size, 80);
  const after = await (await connect(own)).fenced().mutex(name, { wait: 30_000 }).acquire();
  assert.ok(after.token > Math.max(...tokens));
  await after.release();
});

const CONNECT = `
  import { connect } from 'lockkeeper'
  const [url, name] = process.argv.slice(1)
  const locks = (await connect(url)).fenced()
  const lock = locks.mutex(name, { ttl: 1000 })`;

test("an idle client lets the process end, a held lock does not", async (t) => {
  const idle = program(t, `${CONNECT}; await (await lock.acquire()).release()`, own, unique());
  assert.equal(await idle.exited, 0);
  const unrefed = program(t, `${CONNECT}; (await lock.acquire()).unref()`, own, unique());
  assert.equal(await unrefed.exited, 0);
  const held = program(
    t,
    `${CONNECT}; await lock.acquire(); process.on('exit', () => console.log('ends')); console.log('held')`,
    own,
    unique(),
  );
  assert.equal(await held.line(), "held");
  const ended = await Promise.race([held.exited, new Promise((resolve) => setTimeout(resolve, 300, "runs"))]);
  assert.equal(ended, "runs");
});

test("a killed holder is followed", async (t) => {
  const name = unique();
  const holder = program(t, `${CONNECT}; const guard = await lock.acquire(); console.log(guard.token)`, own, name);
  const token = Number(await holder.line());
  holder.child.kill("SIGKILL");
  const next = await (await connect(own)).fenced().mutex(name, { wait: 30_000 }).acquire();
  assert.ok(next.token > token);
  await next.release();
});

test("a holder that was stopped learns its loss before it does anything", async (t) => {
  const name = unique();
  const holder = program(
    t,
    `${CONNECT}
    const guard = await lock.acquire()
    console.log(guard.token)
    process.stdin.on('data', () => {
      try { guard.check(); console.log('held') } catch (error) { console.log(error.code) }
    })
    guard.signal.addEventListener('abort', () => console.log(guard.signal.reason.code))`,
    own,
    name,
  );
  const token = Number(await holder.line());
  holder.child.kill("SIGSTOP");
  const next = await (await connect(own)).fenced().mutex(name, { wait: 30_000 }).acquire();
  assert.ok(next.token > token);
  holder.child.stdin.write("\n");
  holder.child.kill("SIGCONT");
  assert.equal(await holder.line(), "LOCK_LOST");
  assert.equal(await holder.line(), "LOCK_LOST");
  await next.release();
});
