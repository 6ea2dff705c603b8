// Compiled by `tsc --strict`, not run.

import {
  connect,
  type FencedGuard,
  type Guard,
  type Lock,
  LockLost,
  type Partition,
  records,
  type Token,
} from "lockkeeper";
import { RedisFence, key } from "lockkeeper/fences/ioredis";
import * as postgres from "lockkeeper/fences/pg";

declare const client: postgres.Queryable;
declare const fence: RedisFence;

export async function main(signal: AbortSignal): Promise<void> {
  await using locks = await connect("memory:", { label: "types", signal });
  const fenced = locks.fenced();
  await using guard = await fenced.mutex("a", { ttl: 10_000, wait: false, maxWaiters: 3 }).acquire({ signal });
  const token: Token = guard.token;
  const number: number = token;
  // @ts-expect-error: not every number is a token
  const made: Token = number;
  // @ts-expect-error: a guard that is not fenced has no token
  (await locks.mutex("a").acquire()).token;
  // @ts-expect-error: no such option
  locks.mutex("a", { tll: 1 });
  // @ts-expect-error: tryAcquire may give null
  (await locks.mutex("a").tryAcquire()).release();
  const result: string = await fenced
    .mutex("a")
    .run(async ({ token, signal, check }) => `${token} ${signal.aborted} ${check}`);
  const lock: Lock<FencedGuard> = fenced.semaphore("b", 3);
  const plain: Lock<Guard> = lock;
  for await (const partition of await fenced.partitions("p", 8).join()) {
    const one: Partition<FencedGuard> = partition;
    await postgres.enter(client, `p/${one.index}`, one);
  }
  await postgres.write(client, "a", { token: number, mode: "permit", slot: 1 });
  // @ts-expect-error: a pool has no transaction
  await postgres.write({ ...client, totalCount: 1 }, "a", guard);
  await fence.write("a", guard, [["SET", key("a"), 1]]);
  // @ts-expect-error: a guard without a token is not fenced
  await fence.write("a", await locks.mutex("a").acquire(), []);
  try {
    guard.check();
  } catch (error) {
    if (error instanceof LockLost) console.log(error.loss, error.code);
  }
  const { isNew }: { isNew: boolean } = await plain.once("key", await records("file:///records"), () => "done");
  console.log(isNew, result, plain, made);
}
