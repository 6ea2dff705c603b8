"use strict";

// Calls of the native module as promises. Each thread has its own bridge, and the library renews leases on threads of
// its own, whatever the event loop does.

const native = require("./native.cjs");
const { described, native: checked } = require("./errors.cjs");

// The kinds of completions, as src/bridge.rs has them.
const [ENDED, FAILED, HELD, LOST, COMMAND] = [0, 1, 2, 3, 4];
const NUMBERS_MAX = 2 ** 30;

/** The promises of the calls, by their numbers. */
const calls = new Map();
/** The held locks, by their numbers: until they are released, garbage collection leaves them alone. */
const guards = new Map();
/** The connections of fences, by their numbers. */
const connections = new Map();
let last = 0;

// The event loop is kept alive by calls, and by held locks: as an open socket does it. A timer stands for them, since
// one of the native module's handles can't be counted up and down from here.
const alive = setInterval(() => {}, 2 ** 31 - 1);
alive.unref();
let reasons = 0;

function keepAlive() {
  if (++reasons === 1) alive.ref();
}

function letGo() {
  if (--reasons === 0) alive.unref();
}

function number(taken) {
  do last = (last + 1) % NUMBERS_MAX;
  while (taken.has(last));
  return last;
}

const bridge = new native.Bridge((completions) => {
  for (const [kind, id, ...rest] of completions) {
    if (kind === LOST) {
      guards.get(id)?._lose(described(rest[0]));
      continue;
    }
    if (kind === COMMAND) {
      run(id, ...rest);
      continue;
    }
    const call = calls.get(id);
    if (call === undefined) {
      // Cancelled after it was granted, or after a member has joined.
      if (kind === HELD) bridge.abandon(rest[0]);
      else if (kind === ENDED) rest[0]?.abandon?.();
      continue;
    }
    end(id, call);
    if (kind === HELD) call.resolve(call.made(...rest));
    else if (kind === FAILED) call.reject(described(rest[0]));
    else if (kind === ENDED) call.resolve(rest[0]);
  }
});

function end(id, call) {
  calls.delete(id);
  letGo();
  if (call.abort) call.signal.removeEventListener("abort", call.abort);
}

/**
 * Makes a call: `start` passes its number to the native module.
 * `made` makes the guard of a call that acquires a lock.
 */
function call(start, signal, made) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const id = number(calls);
    checked(() => start(id));
    const call = { resolve, reject, made, signal, abort: undefined };
    calls.set(id, call);
    keepAlive();
    if (signal) {
      call.abort = () => {
        end(id, call);
        bridge.cancel(id);
        reject(signal.reason);
      };
      signal.addEventListener("abort", call.abort);
    }
  });
}

/** Runs a command of a fence on its connection. */
async function run(id, connection, words) {
  try {
    bridge.reply(id, null, await connections.get(connection)(words));
  } catch (error) {
    bridge.reply(id, String(error?.message ?? error), null);
  }
}

const forgotten = new FinalizationRegistry((id) => connections.delete(id));

/** Gives a connection a number, for as long as `owner` lives. */
function connect(owner, command) {
  const id = number(connections);
  connections.set(id, command);
  forgotten.register(owner, id);
  return id;
}

module.exports = { bridge, call, checked, connect, guards, keepAlive, letGo, native };
