// What the tests share: the lock services that `system.rs` has started, and programs of their own.

import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";

export const own = process.env.LOCKKEEPER_URL;
/** The lock services on which the promises are tested. */
export const services = Object.entries({ lockkeeper: own, redis: process.env.LOCKKEEPER_REDIS_URL }).filter(
  ([, url]) => url,
);

/** A name that no other test uses. */
export const unique = () => `tests/${randomUUID()}`;

export const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Keeps the event loop busy. */
export function block(milliseconds) {
  const end = performance.now() + milliseconds;
  while (performance.now() < end);
}

/** Starts a program that prints lines. It is ended when the test ends. */
export function program(test, text, ...args) {
  const child = spawn(process.execPath, ["--input-type=module", "-e", text, ...args], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  test.after(() => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    child,
    exited: new Promise((resolve) => child.on("exit", (code, signal) => resolve(code ?? signal))),
    line: async () => (await lines.next()).value,
  };
}
