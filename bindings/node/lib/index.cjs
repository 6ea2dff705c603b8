"use strict";

// Distributed locks that keep their promise even when a holder stalls. index.d.cts documents the API.

const { randomUUID } = require("node:crypto");

const { version } = require("../package.json");
const { bridge, call, checked } = require("./bridge.cjs");
const { checkNames, described: _described, native: _native, ...errors } = require("./errors.cjs");
const { FencedGuard, Guard, bytes, partition, run } = require("./guard.cjs");

const TIMES = ["ttl", "maxHold", "minHold", "keepClosed", "lockDelay", "linger", "minValidity", "cacheFor", "grace"];
const OPTIONS = [...TIMES, "cached", "renew", "wait", "maxWaiters", "subtree", "value", "meta", "holding"];

/** The options of a lock, as the native module takes them. */
function lockOptions(options = {}) {
  checkNames("a lock", options, OPTIONS);
  for (const option of TIMES) {
    const value = options[option];
    if (value !== undefined && typeof value !== "number") throw invalid(option, value, "give milliseconds, 0 or more");
  }
  if (options.wait !== undefined) checkWait(options.wait);
  const { maxWaiters = 0 } = options;
  if (!Number.isInteger(maxWaiters) || maxWaiters < 0 || maxWaiters >= 2 ** 32) {
    throw invalid("maxWaiters", maxWaiters, "give a number of requests, 0 to 4294967295");
  }
  const { holding = [] } = options;
  if (!Array.isArray(holding) || !holding.every((token) => Number.isSafeInteger(token) && token > 0)) {
    throw invalid("holding", holding, "give an array of the tokens of guards");
  }
  return options.value === undefined ? options : { ...options, value: bytes(options.value) };
}

function checkWait(wait) {
  if (typeof wait !== "boolean" && typeof wait !== "number") {
    throw invalid("wait", wait, "give true, false, or milliseconds");
  }
}

function invalid(option, value, limit) {
  return new errors.InvalidOption(`\`${option}\` is ${String(value)}; ${limit}`, {
    option,
    value: String(value),
    limit,
  });
}

const PlainPartition = partition(Guard);
const FencedPartition = partition(FencedGuard);

/** A lock that can be acquired, any number of times. */
class Lock {
  #native;
  #made;

  constructor(native, made) {
    this.#native = native;
    this.#made = made;
  }

  async acquire({ signal, wait, ...others } = {}) {
    checkNames("`acquire`", others, ["signal", "wait"]);
    if (wait !== undefined) checkWait(wait);
    return call((id) => bridge.acquire(id, this.#native, wait), signal, this.#made);
  }

  async tryAcquire({ signal, ...others } = {}) {
    checkNames("`tryAcquire`", others, ["signal"]);
    return call((id) => bridge.tryAcquire(id, this.#native), signal, this.#made);
  }

  async run(section, options) {
    return run(await this.acquire(options), section);
  }

  async once(key, records, work, options) {
    const earlier = await records.get(key);
    if (earlier) return { outcome: earlier.outcome, isNew: false };
    let done;
    const section = async (guard) => {
      const earlier = await records.get(key);
      if (earlier) {
        done = { outcome: earlier.outcome, isNew: false };
        return;
      }
      const attempt = randomUUID().replaceAll("-", "");
      const { attempt: recorded, outcome } = await records.put(key, attempt, bytes(await work(guard)));
      if (recorded !== attempt) {
        const why = "the lock was lost, and another holder has recorded its outcome first";
        throw new errors.DoneTwice(`the work was done twice: ${why}`, { outcome });
      }
      done = { outcome, isNew: true };
    };
    try {
      await this.run(section, options);
    } catch (error) {
      // A lock that was lost after the record was written has done its duty.
      if (!(done && error instanceof errors.LockLost)) throw error;
    }
    return done;
  }
}

/** Where the outcomes of `once` are recorded. */
class Records {
  #native;

  constructor(native) {
    this.#native = native;
  }

  async get(key) {
    return record(await call((id) => bridge.getRecord(id, this.#native, key)));
  }

  async put(key, attempt, outcome) {
    return record(await call((id) => bridge.putRecord(id, this.#native, key, attempt, outcome)));
  }
}

function record(json) {
  if (json === null) return null;
  const { attempt, outcome } = JSON.parse(json);
  return { attempt, outcome: Buffer.from(outcome, "base64") };
}

async function records(url, { keepFor, signal, ...others } = {}) {
  checkNames("`records`", others, ["keepFor", "signal"]);
  return new Records(await call((id) => bridge.records(id, url, keepFor), signal));
}

/** One leader at a time. */
class Election {
  #locks;
  #name;
  #options;
  #made;

  constructor(locks, name, options, made) {
    this.#locks = locks;
    this.#name = name;
    this.#options = lockOptions(options);
    this.#made = made;
  }

  async campaign({ value = "", signal, ...others } = {}) {
    checkNames("`campaign`", others, ["signal", "value"]);
    const start = (id) => bridge.campaign(id, this.#locks, this.#name, bytes(value), this.#options);
    return call(start, signal, this.#made);
  }

  /** Campaigns, and runs a section while it leads. */
  async lead(section, options) {
    return run(await this.campaign(options), section);
  }

  async leader({ signal, ...others } = {}) {
    checkNames("`leader`", others, ["signal"]);
    return leader(await call((id) => bridge.leader(id, this.#locks, this.#name), signal));
  }

  async *observe({ signal, ...others } = {}) {
    checkNames("`observe`", others, ["signal"]);
    const watch = bridge.observe(this.#locks, this.#name);
    for (;;) yield leader(await call((id) => bridge.nextLeader(id, watch), signal));
  }
}

function leader(json) {
  if (json === null) return null;
  const { token, label, value } = JSON.parse(json);
  return { token, label, value: Buffer.from(value, "base64") };
}

/** The members of groups. They leave by `leave`, not by garbage collection. */
const members = new Set();

/** A member of a group that divides partitions. */
class PartitionMember {
  #native;
  #made;

  constructor(native, made) {
    this.#native = native;
    this.#made = made;
    members.add(this);
  }

  async next({ timeout, signal, ...others } = {}) {
    checkNames("`next`", others, ["signal", "timeout"]);
    return call((id) => bridge.nextPartition(id, this.#native, timeout), signal, this.#made);
  }

  async *[Symbol.asyncIterator]() {
    for (;;) yield await this.next();
  }

  async leave() {
    members.delete(this);
    await call((id) => bridge.leave(id, this.#native));
  }

  async [Symbol.asyncDispose]() {
    if (members.has(this)) await this.leave();
  }
}

/** Numbered partitions, each of one member of a group at a time. */
class Partitions {
  #locks;
  #name;
  #count;
  #options;
  #made;

  constructor(locks, name, count, options, made) {
    this.#locks = locks;
    this.#name = name;
    this.#count = count;
    this.#options = lockOptions(options);
    this.#made = made;
  }

  async join({ signal, ...others } = {}) {
    checkNames("`join`", others, ["signal"]);
    const start = (id) => bridge.join(id, this.#locks, this.#name, this.#count, this.#options);
    return new PartitionMember(await call(start, signal), this.#made);
  }
}

/** A client of a lock service. */
class Locks {
  #native;
  #isFenced;

  constructor(native, isFenced) {
    this.#native = native;
    this.#isFenced = isFenced;
  }

  get abilities() {
    return Object.fromEntries(this.#native.abilities());
  }

  get promises() {
    return this.#native.promises().map(([number, name, kept]) => ({ number, name, kept }));
  }

  fenced() {
    return new Locks(
      checked(() => this.#native.fenced()),
      true,
    );
  }

  #lock(mode, make, options) {
    const Class = this.#isFenced ? FencedGuard : Guard;
    const given = lockOptions(options);
    const native = checked(() => make(given));
    return new Lock(native, (...facts) => new Class(mode, ...facts));
  }

  mutex(name, options) {
    return this.#lock("exclusive", (options) => this.#native.mutex(name, options), options);
  }

  read(name, options) {
    return this.#lock("shared", (options) => this.#native.read(name, options), options);
  }

  write(name, options) {
    return this.#lock("exclusive", (options) => this.#native.write(name, options), options);
  }

  semaphore(name, permits, options) {
    return this.#lock("permit", (options) => this.#native.semaphore(name, permits, options), options);
  }

  all(names, options) {
    return this.#lock("exclusive", (options) => this.#native.all([...names], options), options);
  }

  rate(name, count, per, options) {
    return this.#lock("permit", (options) => this.#native.rate(name, count, per, options), options);
  }

  striped(name, stripes, key, options) {
    return this.#lock("exclusive", (options) => this.#native.striped(name, stripes, bytes(key), options), options);
  }

  election(name, options) {
    const Class = this.#isFenced ? FencedGuard : Guard;
    return new Election(this.#native, name, options, (...facts) => new Class("exclusive", ...facts));
  }

  partitions(name, count, options) {
    const Class = this.#isFenced ? FencedPartition : PlainPartition;
    return new Partitions(this.#native, name, count, options, (...facts) => new Class("exclusive", ...facts));
  }

  async inspect(name) {
    return lockInfo(JSON.parse(await call((id) => bridge.inspect(id, this.#native, name))));
  }

  async list(prefix) {
    return JSON.parse(await call((id) => bridge.list(id, this.#native, prefix))).map(lockInfo);
  }

  async checkToken(name, token) {
    return JSON.parse(await call((id) => bridge.checkToken(id, this.#native, name, token)));
  }

  async breakHold(name, token, { reason, by, now = false, ...others }) {
    checkNames("`breakHold`", others, ["reason", "by", "now"]);
    return JSON.parse(await call((id) => bridge.breakHold(id, this.#native, name, token, reason, by, now)));
  }

  async close({ limit = 5000, ...others } = {}) {
    checkNames("`close`", others, ["limit"]);
    await call((id) => bridge.close(id, this.#native, limit));
  }

  async [Symbol.asyncDispose]() {
    await this.close();
  }
}

/** `null` is for JSON: what is not known is absent. */
function lockInfo({ holds, waiters, ...lock }) {
  return {
    ...known(lock),
    holds: holds.map(({ value, ...hold }) => ({ ...dated(hold), value: Buffer.from(value, "base64") })),
    waiters: waiters.map(dated),
  };
}

function dated({ since, ...fields }) {
  return known({ ...fields, since: since === null ? null : new Date(since) });
}

function known(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null));
}

async function connect(url, { label, signal, ...others } = {}) {
  checkNames("`connect`", others, ["label", "signal"]);
  return new Locks(await call((id) => bridge.connect(id, url, label), signal), false);
}

module.exports = { ...errors, connect, records, version };
