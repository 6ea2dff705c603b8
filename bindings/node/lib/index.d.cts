/**
 * Distributed locks that keep their promise even when a holder stalls.
 *
 * ```ts
 * import { connect } from 'lockkeeper'
 *
 * const locks = (await connect('redis://127.0.0.1:6379')).fenced()
 * await locks.mutex('orders/42').run(async ({ token, signal }) => {
 *   await write(order, { token, signal }) // the resource refuses older tokens
 * })
 * ```
 *
 * All times are in milliseconds.
 */

declare const tokenBrand: unique symbol;

/** A fencing token: it rises with every grant, and is below 2^53. */
export type Token = number & { readonly [tokenBrand]: true };

/** How a lock is held. */
export type Mode = "exclusive" | "shared" | "permit";

/** Why a lock was lost. */
export type LossCause = "expired" | "session-ended" | "broken" | "max-hold" | (string & {});

export interface ConnectOptions {
  /** What others see of this client. Default: the program, its process, and the host. */
  label?: string;
  /** Ends the wait. */
  signal?: AbortSignal;
}

/** Connects to the lock service of a URL. */
export function connect(url: string, options?: ConnectOptions): Promise<Locks>;

/** The version of this package. */
export const version: string;

/** Where the outcomes of `Lock.once` are recorded. */
export interface Records {
  /** The record of a key. */
  get(key: string): Promise<OnceRecord | null>;
  /** Stores a record unless the key has one; gives the key's record. */
  put(key: string, attempt: string, outcome: Uint8Array): Promise<OnceRecord>;
}

export interface OnceRecord {
  /** The id of the attempt that has done the work. */
  attempt: string;
  outcome: Uint8Array;
}

/**
 * Connects to a store of records: `file:///dir`, `redis://host:port` or `dynamodb://table`. They are deleted after
 * `keepFor`, except for files: keep them for longer than any retry of the same key can take.
 */
export function records(url: string, options?: { keepFor?: number; signal?: AbortSignal }): Promise<Records>;

/** The options of a lock. */
export interface LockOptions {
  /** How long the hold outlives a client that is not heard: the lease. Default: 30,000. */
  ttl?: number;
  /** Whether the lease is renewed while the lock is held. Default: true. */
  renew?: boolean;
  /** Whether to wait for the lock, or for how long. Default: true. */
  wait?: boolean | number;
  /** Wait only if fewer requests than this wait for each of the names; else `Busy` at once. */
  maxWaiters?: number;
  /** Tokens of holds that are kept until the acquire has ended; `Deadlock` if it would wait for one of them. */
  holding?: readonly number[];
  /** Lock everything below the name too. */
  subtree?: boolean;
  /** The longest hold: it is lost then. */
  maxHold?: number;
  /** The shortest hold: a release takes effect no earlier. */
  minHold?: number;
  /** How long the lock stays closed after a release. */
  keepClosed?: number;
  /** How long the lock stays closed after a holder that has died. */
  lockDelay?: number;
  /** How long the hold outlives a connection that was closed. */
  linger?: number;
  /** How much of the lease must be left when the lock is acquired. */
  minValidity?: number;
  /** Keep the lock between its sections while nobody else wants it: then an acquire needs no round trip. Default: false. */
  cached?: boolean;
  /** How long a cached lock is kept without a section. Default: 10,000. */
  cacheFor?: number;
  /** How long before the lease's end the hold counts as lost. */
  grace?: number;
  /** A value that others see with the hold. */
  value?: string | Uint8Array;
  /** Names and texts that others see with the hold. */
  meta?: Record<string, string>;
}

export interface AcquireOptions {
  /** Ends the wait: the request is abandoned, and the promise rejects with the signal's reason. */
  signal?: AbortSignal;
  /** Whether to wait, or for how long, instead of the lock's option. */
  wait?: boolean | number;
}

/** A client of a lock service, whose guards are of the type `G`. */
interface AnyLocks<G extends Guard> {
  /** What the lock service can do. */
  readonly abilities: Record<string, boolean>;
  /** The promises P1 to P12, and how the lock service keeps them. */
  readonly promises: { number: number; name: string; kept: string }[];
  /** An exclusive lock. */
  mutex(name: string, options?: LockOptions): Lock<G>;
  /** The shared side of a lock: of many readers, or one writer. */
  read(name: string, options?: LockOptions): Lock<G>;
  /** The exclusive side of a lock of many readers, or one writer. */
  write(name: string, options?: LockOptions): Lock<G>;
  /** One of `permits` permits; `undefined`: of as many as an operator has set. */
  semaphore(name: string, permits?: number, options?: LockOptions): Lock<G>;
  /** All these locks at once, or none. */
  all(names: Iterable<string>, options?: LockOptions): Lock<G>;
  /** At most `count` acquires in `per` milliseconds. */
  rate(name: string, count: number, per: number, options?: LockOptions): Lock<G>;
  /** The lock of a key, of `stripes` locks that all keys share. */
  striped(name: string, stripes: number, key: string | Uint8Array, options?: LockOptions): Lock<G>;
  /** One leader at a time. */
  election(name: string, options?: LockOptions): Election<G>;
  /** `count` partitions, which a group divides among its members. */
  partitions(name: string, count: number, options?: LockOptions): Partitions<G>;
  /** The state of a lock. */
  inspect(name: string): Promise<LockInfo>;
  /** The locks that are held or waited for, at or below a name. */
  list(prefix?: string): Promise<LockInfo[]>;
  /** Whether a token belongs to a live hold. */
  checkToken(name: string, token: number): Promise<TokenInfo>;
  /** Asks a holder to stop; `now`: also opens a lock that is kept closed. */
  breakHold(name: string, token: number, order: { reason: string; by: string; now?: boolean }): Promise<BreakInfo>;
  /** Ends the client's sessions, which releases its locks; waits for that at most `limit`. Default: 5,000. */
  close(options?: { limit?: number }): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export interface Locks extends AnyLocks<Guard> {
  /** The same client, whose guards have tokens. Throws `Unsupported` where there are none. */
  fenced(): FencedLocks;
}

export interface FencedLocks extends AnyLocks<FencedGuard> {}

/** A lock that can be acquired, any number of times. */
export interface Lock<G extends Guard = Guard> {
  acquire(options?: AcquireOptions): Promise<G>;
  /** Acquires the lock if it is free; else `null`. */
  tryAcquire(options?: { signal?: AbortSignal }): Promise<G | null>;
  /**
   * Acquires the lock for `section`, and releases it at its end. Rejects with `LockLost` if it was lost meanwhile,
   * unless the section itself has thrown something else than an `AbortError`.
   */
  run<T>(section: (guard: G) => T | Promise<T>, options?: AcquireOptions): Promise<T>;
  /**
   * Does work once for each key: unless `records` has its outcome, the work runs under the lock, and what it returns is
   * recorded. If the process dies in between, the work is done again. Rejects with `DoneTwice` if the lock was lost and
   * another holder has recorded its outcome first.
   */
  once(
    key: string,
    records: Records,
    work: (guard: G) => Uint8Array | string | Promise<Uint8Array | string>,
    options?: AcquireOptions,
  ): Promise<{ outcome: Uint8Array; isNew: boolean }>;
}

/**
 * A lock that is held by this program, until it is released or lost. It is never released because this object is
 * garbage. As an open socket does it, it keeps the process running.
 */
export interface Guard {
  readonly mode: Mode;
  /** The token, if the lock service has tokens: for logs. A resource needs that of `fenced()`. */
  readonly tokenHint: Token | undefined;
  /** The number of a semaphore's permit. */
  readonly slot: number | undefined;
  /** Aborts when the lock is lost, before another client can have it; the reason is a `LockLost`. */
  readonly signal: AbortSignal;
  /** The loss; `null` if there was none. */
  readonly loss: LockLost | null;
  /** Whether `release` was called. */
  readonly isReleased: boolean;
  /** What keeps the lease from being renewed at present. */
  readonly trouble: string | undefined;
  /**
   * Throws `LockLost` if the lock is lost, or certain for less than `need`. Asks nobody, and sees a loss even while
   * the event loop is blocked.
   */
  check(need?: number): void;
  /** For how long the hold is certain, if it is not renewed; `Infinity` if it has no end. Throws `LockLost`. */
  validFor(): number;
  /** Asks the lock service whether the lock is held. Rejects with `LockLost` or `NoAnswer`. */
  verify(): Promise<void>;
  /** Changes the value that others see with the hold. */
  setValue(value: string | Uint8Array): Promise<void>;
  /** Makes an exclusive hold a shared one. */
  downgrade(): Promise<void>;
  /** Releases the lock. Rejects with `LockLost` if it was lost before, `ReleaseNotConfirmed` if there is no answer. */
  release(): Promise<void>;
  /** From now on, this hold does not keep the process running. */
  unref(): this;
  /** `release`, for `await using`; nothing if it was released before. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** A guard with a token, which the resource checks. */
export interface FencedGuard extends Guard {
  readonly token: Token;
}

/** One leader at a time. */
export interface Election<G extends Guard = Guard> {
  /** Waits until this client leads. It leads until the guard is released or lost. */
  campaign(options?: { value?: string | Uint8Array; signal?: AbortSignal }): Promise<G>;
  /** Campaigns, and runs a section while it leads, as `Lock.run` does. */
  lead<T>(
    section: (guard: G) => T | Promise<T>,
    options?: { value?: string | Uint8Array; signal?: AbortSignal },
  ): Promise<T>;
  /** Who leads now. */
  leader(options?: { signal?: AbortSignal }): Promise<Leader | null>;
  /** The leaders, one after another; `null` while nobody leads. */
  observe(options?: { signal?: AbortSignal }): AsyncGenerator<Leader | null, never>;
}

export interface Leader {
  token: Token | null;
  label: string;
  value: Uint8Array;
}

/** Numbered partitions, each of one member of a group at a time. */
export interface Partitions<G extends Guard = Guard> {
  join(options?: { signal?: AbortSignal }): Promise<PartitionMember<G>>;
}

/**
 * A member of a group that divides partitions, until it leaves. Others' coming and going is noticed while `next`
 * waits: keep calling it, or iterate.
 */
export interface PartitionMember<G extends Guard = Guard> extends AsyncIterable<Partition<G>> {
  /** Waits until one more partition is this member's; `null` if there was none within `timeout`. */
  next(options?: { signal?: AbortSignal }): Promise<Partition<G>>;
  next(options: { timeout: number; signal?: AbortSignal }): Promise<Partition<G> | null>;
  /** Leaves the group: others get its partitions. */
  leave(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export type Partition<G extends Guard = Guard> = G & {
  /** The number of the partition, from 0. */
  readonly index: number;
  /** Whether another member waits for it, or it is lost: release it soon. */
  readonly isLeaving: boolean;
  /** Waits until `isLeaving`, or the partition is released. */
  leaving(options?: { signal?: AbortSignal }): Promise<void>;
};

/** The state of a lock. What the lock service does not know is absent. */
export interface LockInfo {
  name: string;
  holds: HoldInfo[];
  holdCount: number;
  waiters: WaiterInfo[];
  waiterCount: number;
  /** The number of permits in force. */
  permits?: number;
  /** Whether an operator has set it. */
  permitsStored: boolean;
}

export interface HoldInfo {
  token?: Token;
  session?: number;
  label: string;
  identity: string;
  mode: Mode;
  subtree: boolean;
  slot?: number;
  state: "held" | "revoked" | "closed" | "unknown";
  /** Milliseconds. */
  heldFor?: number;
  /** When it was acquired, by the clock of the lock service. */
  since?: Date;
  /** Of a closed hold: how much longer it keeps the lock closed. */
  closedFor?: number;
  /** Of a revoked hold: who has ordered the break, and why. */
  breakBy?: string;
  breakReason?: string;
  value: Uint8Array;
  meta: Record<string, string>;
}

export interface WaiterInfo {
  session?: number;
  label: string;
  identity: string;
  mode: Mode;
  subtree: boolean;
  /** Milliseconds. */
  waitingFor?: number;
  /** When it was queued, by the clock of the lock service. */
  since?: Date;
  meta: Record<string, string>;
}

export interface TokenInfo {
  status: "current" | "not-current" | "never-issued";
  /** The tokens of the live holds. */
  liveTokens: Token[];
}

export interface BreakInfo {
  result: "done" | "not-current" | "still-closed" | "unknown";
  liveTokens: Token[];
}

/** The base of all errors of this package. Their texts say what was wrong, the value, the limit, and what to do. */
export class LockkeeperError extends Error {
  /** The class as a text, such as `LOCK_LOST`: for programs with two copies of this package. */
  readonly code: string;
}

/** The lock was lost while it was held: another client may have it. */
export class LockLost extends LockkeeperError {
  readonly loss: LossCause;
  /** What kept the lease from being renewed, if that is known. */
  readonly trouble: string | null;
  /** Who broke the hold, if an operator did, and the reason that was given. */
  readonly brokenBy: string | null;
  readonly reason: string | null;
}

/** The URL names no lock service. */
export class InvalidUrl extends LockkeeperError {}

/** The text can't be a lock's name. */
export class InvalidName extends LockkeeperError {}

/** An option has a value that it can't have. */
export class InvalidOption extends LockkeeperError {
  readonly option: string;
  readonly value?: string;
  /** What is allowed. */
  readonly limit: string;
}

/** The lock service can't do this. */
export class Unsupported extends LockkeeperError {
  /** The lock service, what it can't do, and what to do instead. */
  readonly backend?: string;
  readonly what?: string;
  readonly remedy?: string;
}

/** The lock service refused or failed. */
export class BackendError extends LockkeeperError {
  /** Whether the same call may succeed later, without anybody's help. */
  readonly mayPass?: boolean;
}

/** The lock service can't be used. */
export class ConnectError extends BackendError {}
/** The lock service does not permit it: a password, a certificate, or a permission. */
export class Denied extends BackendError {}
/** An operator must act first. */
export class NeedsOperator extends BackendError {}
/** The lock service refused it. */
export class Refused extends BackendError {}
/** A limit of the lock service, or of a lock, is reached. */
export class LimitReached extends BackendError {}

/** The lock service does not answer. Nothing was acquired. */
export class Unreachable extends BackendError {
  readonly waited?: number;
  readonly why?: string | null;
}

/** A lock was not acquired. */
export class AcquireError extends LockkeeperError {}

/** The lock is not free, and the request does not wait: by `wait: false`, or as `maxWaiters` wait already. */
export class Busy extends AcquireError {
  /** The holder's label, if the lock service knows it, and the requests that wait before this one would. */
  readonly holder: string | null;
  readonly queuedAhead: number;
}

/** The wait would never end: who is in its way waits for a hold in `holding`. The message names the cycle. */
export class Deadlock extends AcquireError {}

/** The lock did not become free in time. */
export class AcquireTimeout extends AcquireError {
  readonly waited: number;
  /** The refusal of the last attempt, if it was refused. */
  readonly why: string | null;
}

/** A request was sent and not answered: the lock may be this client's for up to its ttl. */
export class Ambiguous extends AcquireError {
  readonly waited: number;
  readonly why: string | null;
}

/** The release was not answered: the lock is free once its ttl has passed, at the latest. */
export class ReleaseNotConfirmed extends LockkeeperError {}
/** A question about a hold, or a change of it, was not answered; a fenced write may have been done. */
export class NoAnswer extends LockkeeperError {}
/** The work of `once` was done twice: another holder has recorded its outcome first. */
export class DoneTwice extends LockkeeperError {
  readonly outcome: Uint8Array;
}
/** The work of `once` was done, and the records failed: unless it was recorded, it may be done again. */
export class NotRecorded extends LockkeeperError {}
/** The lock was released before. */
export class Released extends LockkeeperError {}

/** The base of the errors of fences. */
export class FenceError extends LockkeeperError {}

/** The token is stale: a newer holder has been at the resource. Nothing was done. */
export class Stale extends FenceError {
  readonly token: Token;
  readonly newest: Token;
}

/** `once` lets a token through once, and this one has been here. Nothing was done. */
export class Repeated extends FenceError {
  readonly token: Token;
}

/** The resource has no fence, or its mode or arguments are wrong. Nothing was done. */
export class NotFenced extends FenceError {}

/** The token passed, and one of the commands of the write failed: those before it took effect. */
export class EffectFailed extends FenceError {
  /** The number of commands that took effect. */
  readonly done: number;
}

/** The token passed, but the caller's own condition did not hold. Nothing was done. */
export class ConditionFailed extends FenceError {}

/** The hold under which a section runs: a guard, or its fields in another process. */
export interface Section {
  readonly token: number;
  /** Default: exclusive. */
  readonly mode?: Mode;
  readonly slot?: number | undefined;
}
