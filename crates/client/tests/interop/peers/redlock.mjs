// node-redlock, driven by one line a command. Used as `redlock.mjs PORT...`: its servers, one or an odd number.
//
// try NAME TTL_MS       -> held VALUE | busy
// acquire NAME TTL_MS   -> waiting, unless it is free at once; then held VALUE
// extend NAME TTL_MS    -> held | lost
// release NAME          -> released | lost
//
// It says `ready` once every server has answered it, and ends at the end of its input without releasing anything.
// Whatever redlock does not expect ends it with a stack trace.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";

// An import would look beside this file only, where no packages are.
const require = createRequire(`${process.env.LOCKKEEPER_NPM}/`);
const { Redis } = require("ioredis");
const { default: Redlock, ExecutionError } = require("redlock");

const once = { retryCount: 0 };
const WAITING_LOOKS_EVERY_MS = 20;

const clients = process.argv.slice(2).map((port) => new Redis(Number(port)));
await Promise.all(clients.map((client) => client.ping()));
const redlock = new Redlock(clients);
const held = new Map();
// Whoever drives it is gone. A loop that waits for a lock, or for its servers, would go on for ever.
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
      // Not by redlock's own retries: they take servers that an earlier one of them has got for somebody else's, and
      // where a lock's keys end one after the other, they are in their own way until their ttl is over.
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

// What `step` comes to; nothing if no majority of the servers agreed, which is all that redlock says.
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
