/**
 * The fence of DynamoDB, by a client of `@aws-sdk/client-dynamodb`. The marks are attributes of the guarded item.
 *
 * ```ts
 * const fence = new DynamoDbFence(new DynamoDBClient({ maxAttempts: 1 }))
 * const stock = { table: 'stock', key: { id: { S: 'screws' } } }
 * const item = await fence.enter(stock, guard) // this is the read
 * await fence.write(stock, guard, { update: { set: ['pieces = :n'], values: { ':n': { N: '11' } } } })
 * ```
 *
 * A write that is sent twice may count twice, so the client must not repeat it by itself: `maxAttempts: 1`.
 */
import { Section } from "../index.cjs";

/** A value with its type, as the SDK has it: `{ N: '7' }`. */
export type Value = Record<string, unknown>;
export type Item = Record<string, any>;

export interface Resource {
  table: string;
  /** The item's key. */
  key: Item;
}

/** Expressions of DynamoDB, with placeholders. The fence adds its own. */
export interface Update {
  set?: string[];
  remove?: string[];
  add?: string[];
  delete?: string[];
  /** A further condition. */
  when?: string;
  names?: Record<string, string>;
  values?: Item;
}

/** A change of the item, another item in its place, or its removal, which leaves its marks. */
export type Effect = { update: Update } | { put: Item } | { delete: true };

export interface DynamoDbClient {
  send(command: any): Promise<any>;
}

export class DynamoDbFence {
  constructor(client: DynamoDbClient);
  /** Raises the marks, and returns the item after that: the read. An item that was not there is made. */
  enter(resource: Resource, section: Section): Promise<Item>;
  /** Checks and writes in one step. */
  write(resource: Resource, section: Section, effect: Effect): Promise<void>;
  /** As `write`, without an `enter`, and once for each token. */
  once(resource: Resource, section: Section, effect: Effect): Promise<void>;
}
