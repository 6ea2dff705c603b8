/**
 * The fence of Redis, on a connection of `ioredis` that sends nothing twice: else a write may be done twice.
 *
 * ```ts
 * const redis = new Redis({ autoResendUnfulfilledCommands: false })
 * const fence = await RedisFence.connect(redis)
 * await fence.enter('stock', guard)
 * const old = Number(await redis.get('stock'))
 * await fence.write('stock', guard, [['SET', key('stock'), old - 1]])
 * ```
 */
import { Section } from "../index.cjs";

export interface RedisConnection {
  callBuffer(command: string, ...words: Buffer[]): Promise<unknown>;
  options: object;
}

declare class Key {
  private constructor();
}
export type { Key };

/** Marks a word of a command as a key. */
export function key(name: string | Uint8Array): Key;

/** A command: its name, its keys and its arguments, in the order that Redis expects. */
export type Command = [name: string, ...words: (string | number | Uint8Array | Key)[]];

export class RedisFence {
  private constructor();
  /**
   * Refuses a connection whose option `autoResendUnfulfilledCommands` is not `false`, and a server that may throw keys
   * away, unless `trustsNoEviction`.
   */
  static connect(redis: RedisConnection, options?: { trustsNoEviction?: boolean }): Promise<RedisFence>;
  /** Raises the marks. Before anything is read. */
  enter(resource: string, section: Section): Promise<void>;
  /** Checks, and runs commands in one step. Returns their replies. */
  write(resource: string, section: Section, commands: Command[]): Promise<unknown[]>;
  /** As `write`, without an `enter`, and once for each token. */
  once(resource: string, section: Section, commands: Command[]): Promise<unknown[]>;
}
