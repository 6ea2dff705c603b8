// The driver of the conformance tests: commands on standard input, one JSON object a line; answers and events on
// standard output (docs/write-a-client.md).

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// By `require`, which finds the package by NODE_PATH too.
const { connect, version, ...errors } = createRequire(import.meta.url)("lockkeeper");

const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

say({
  driver: "node",
  version,
  protocol: 1,
  schemes: [
    ...["memory", "dynamodb", "etcd", "etcds", "file", "postgres", "postgresql", "redis", "rediss", "redis+unix"],
    ...["redlock", "redlocks", "lockkeeper", "lockkeepers", "zookeeper", "zookeepers"],
  ],
  modes: ["exclusive", "shared", "permit"],
  features: ["election", "all", "subtree"],
});

/** The client, once it has connected. */
let connected;
let ttl;
/** The guards by name, also those that were released. */
const holds = new Map();
/** The controllers of the acquires that wait, by their commands' ids. */
const waiting = new Map();

class Refused extends Error {}

async function client() {
  if (!connected) throw new Refused("connect first");
  return connected;
}

function held(hold) {
  const guard = holds.get(hold);
  if (!guard) throw new Refused(`there is no hold ${JSON.stringify(hold)}`);
  return guard;
}

function keep(hold, guard) {
  holds.set(hold, guard);
  guard.signal.addEventListener("abort", () => {
    if (holds.get(hold) === guard && !guard.isReleased) say({ event: "lost", hold });
  });
  return { token: guard.tokenHint ?? null, valid_ms: validMs(guard) };
}

function validMs(guard) {
  const valid = guard.validFor();
  return valid === Infinity ? null : Math.floor(valid);
}

/** `wait_ms` as the package has it. */
function waitOf(limit) {
  return limit === null ? true : limit === 0 ? false : limit;
}

function lockOf(locks, { lock, mode, permits, also, subtree }) {
  const options = { ttl, ...(subtree && { subtree }) };
  if (also?.length) return locks.all([lock, ...also], options);
  if (mode === "exclusive") return locks.mutex(lock, options);
  if (mode === "shared") return locks.read(lock, options);
  if (mode === "permit") return locks.semaphore(lock, permits, options);
  throw new Refused(`there is no mode ${JSON.stringify(mode)}`);
}

/** Waits with a signal that the command `cancel` aborts. */
async function wait(id, work) {
  const controller = new AbortController();
  waiting.set(id, controller);
  try {
    return await work(controller.signal);
  } finally {
    waiting.delete(id);
  }
}

const commands = {
  async connect({ url, ttl_ms: given, label }) {
    if (connected) throw new Refused("it has connected");
    if (!(given >= 1_000 && given <= 3_600_000)) {
      throw new Refused(`the ttl is ${given} ms; 1,000 to 3,600,000 are allowed`);
    }
    ttl = given;
    connected = connect(url, label === undefined ? {} : { label }).then((locks) =>
      locks.abilities.fencing ? locks.fenced() : locks,
    );
    try {
      await connected;
    } catch (error) {
      connected = undefined;
      throw error;
    }
    return {};
  },

  async acquire({ id, hold, wait_ms: limit = null, ...lock }) {
    const acquire = async (signal) => lockOf(await client(), lock).acquire({ signal, wait: waitOf(limit) });
    return keep(hold, await wait(id, acquire));
  },

  async lead({ id, hold, election, wait_ms: limit = null }) {
    const options = { ttl, wait: waitOf(limit) };
    const campaign = async (signal) => (await client()).election(election, options).campaign({ signal });
    return keep(hold, await wait(id, campaign));
  },

  async cancel({ acquire }) {
    waiting.get(acquire)?.abort(new errors.LockkeeperError("cancelled", { cancelled: true }));
    return {};
  },

  async release({ hold }) {
    const guard = held(hold);
    const isAgain = guard.isReleased;
    try {
      await guard.release();
      return { was: isAgain ? "released" : "held" };
    } catch (error) {
      if (error instanceof errors.LockLost) return { was: "lost" };
      throw error;
    }
  },

  async check({ hold }) {
    const guard = held(hold);
    guard.check();
    return { valid_ms: validMs(guard) };
  },

  async stall({ ms }) {
    const end = performance.now() + ms;
    while (performance.now() < end);
    return {};
  },

  async die() {
    process.kill(process.pid, "SIGKILL");
  },
};

/** The fields of the commands. */
const fields = Object.fromEntries(
  Object.entries({
    connect: ["url", "ttl_ms", "label"],
    acquire: ["hold", "lock", "mode", "permits", "also", "subtree", "wait_ms"],
    lead: ["hold", "election", "wait_ms"],
    cancel: ["acquire"],
    release: ["hold"],
    check: ["hold"],
    stall: ["ms"],
    die: [],
  }).map(([command, own]) => [command, ["id", "do", ...own]]),
);

const kinds = [
  ["Busy", "busy"],
  ["AcquireTimeout", "timed-out"],
  ["LockLost", "lost"],
  ["Unreachable", "unreachable"],
  ["Ambiguous", "unreachable"],
  ["ReleaseNotConfirmed", "unreachable"],
];

function kind(error) {
  if (error?.cancelled) return "cancelled";
  return kinds.find(([name]) => error instanceof errors[name])?.[1] ?? "refused";
}

async function answer(line) {
  let id = null;
  try {
    const command = JSON.parse(line);
    id = command.id ?? null;
    const run = Object.hasOwn(commands, command.do) ? commands[command.do] : undefined;
    const unknown = Object.keys(command).find((field) => !(fields[command.do] ?? []).includes(field));
    if (run && unknown) throw new Refused(`\`${command.do}\` has no field ${JSON.stringify(unknown)}`);
    if (!run) throw new Refused(`there is no command ${JSON.stringify(command.do)}`);
    say({ id, ok: await run(command) });
  } catch (error) {
    say({ id, error: { kind: kind(error), text: String(error?.message ?? error) } });
  }
}

const lines = createInterface({ input: process.stdin });
lines.on("line", answer);
lines.on("close", async () => {
  holds.clear();
  await connected?.then((locks) => locks.close()).catch(() => {});
  process.exit(0);
});
