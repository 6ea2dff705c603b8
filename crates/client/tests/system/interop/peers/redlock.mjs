// Runs node-redlock for the tests: reads one command per line. Used as `redlock.mjs PORT...`, with the ports of its
// servers.
//
// try NAME TTL_MS       -> held VALUE | busy
// acquire NAME TTL_MS   -> held VALUE if the lock is free; otherwise waiting, and later held VALUE
// extend NAME TTL_MS    -> held | lost
// release NAME          -> released | lost
//
// The script prints `ready` once every server has answered a PING. It ends at the end of its input without releasing
// anything, and with a stack trace at any error that is not an ExecutionError of redlock.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";

// An `import` would search for packages only in the directories above this file, where none are installed.
const require = createRequire(`${process.env.LOCKKEEPER_NPM}/`);
const { Redis } = require("ioredis");
const { default: Redlock, ExecutionError } = require("redlock");

const once = { retryCount: 0 };
const WAITING_LOOKS_EVERY_MS = 20;

const clients = process.argv.slice(2).map((port) => new Redis(Number(port)));
await Promise.all(clients.map((client) => client.ping()));
const redlock = new Redlock(clients);
const held = new Map();
// At the end of the input the test has ended. Without an exit here, a loop that waits for a lock, or reconnects to a
// server, would run for ever.
process.stdin.on("end", () => process.exit());
say("ready");

for await (const line of createInterface({ input: process.stdin })) {
  const [command, name, ttlMs] = line.split(" ");
  const ttl = Number(ttlMs);
  if (command === "try" || command === "acquire") {
    const attempt = () => unlessRefused(redlock.acquire([name], ttl, once));
    let lock = await attempt();
    if (!lock && command === "acquire") {
      say("waiting");
      // redlock's own retries are not used: they don't delete the keys of a failed attempt, and the next attempt counts
      // those as held by another client. If the old lock's keys expire one after another, the retries so block
      // themselves until their own ttl is over.
      while (!lock) {
        await pause(WAITING_LOOKS_EVERY_MS);
        lock = await attempt();
      }
    }
    if (lock) held.set(name, lock);
    say(lock ? `held ${lock.value}` : "busy");
  } else if (command === "extend") {
    const lock = await unlessRefused(redlock.extend(held.get(name), ttl, once));
    if (lock) held.set(name, lock);
    say(lock ? "held" : "lost");
  } else if (command === "release") {
    say((await unlessRefused(redlock.release(held.get(name), once))) ? "released" : "lost");
  } else {
    throw new Error(`unknown command: ${line}`);
  }
}

// Returns the result of `step`, or `undefined` if no majority of the servers agreed. redlock gives no further reason.
async function unlessRefused(step) {
  try {
    return await step;
  } catch (error) {
    if (error instanceof ExecutionError) return undefined;
    throw error;
  }
}

function say(answer) {
  process.stdout.write(`${answer}\n`);
}
