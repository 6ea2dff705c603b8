// Fences on real servers, by each library. `system.rs` checks that the Rust fences have the same marks.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import path from "node:path";
import { test } from "node:test";

import { DynamoDBClient } from "@aws-sdk/client-dynamodb";
import makeExpress from "express";
import makeFastify from "fastify";
import { Redis } from "ioredis";
import pg from "pg";
import { connect, EffectFailed, FenceError, Repeated, Stale } from "lockkeeper";
import { DynamoDbFence } from "lockkeeper/fences/dynamodb";
import { express, fastify } from "lockkeeper/fences/http";
import { RedisFence, key } from "lockkeeper/fences/ioredis";
import * as postgres from "lockkeeper/fences/pg";
import { own, unique } from "./support.mjs";

const { DYNAMODB_TABLE: TABLE, DYNAMODB_URL, MARKS, POSTGRES_URL, REDIS_URL } = process.env;
const seven = { token: 7 };

/** A guard that was released, and the one after it. */
async function holders() {
  const lock = (await connect(own)).fenced().mutex(unique());
  const old = await lock.acquire();
  await old.release();
  return [old, await lock.acquire()];
}

test("PostgreSQL: a stale holder is refused, and its transaction does nothing", async () => {
  const client = new pg.Client(POSTGRES_URL);
  await client.connect();
  await client.query(postgres.schemaSql());
  await client.query("CREATE TABLE IF NOT EXISTS orders (name text PRIMARY KEY, state text)");
  const [old, held] = await holders();
  const name = unique();
  const transaction = async (work) => {
    await client.query("BEGIN");
    try {
      await work();
      await client.query("COMMIT");
    } catch (error) {
      await client.query("ROLLBACK");
      throw error;
    }
  };
  await transaction(async () => {
    await postgres.enter(client, name, held);
    await client.query("INSERT INTO orders VALUES ($1, 'new')", [name]);
  });
  const stale = transaction(async () => {
    await client.query("UPDATE orders SET state = 'stale' WHERE name = $1", [name]);
    await postgres.write(client, name, old);
  });
  await assert.rejects(stale, (error) => {
    assert.deepEqual([error.code, error.token, error.newest], ["STALE", old.token, held.token]);
    return error instanceof Stale && error instanceof FenceError;
  });
  const { rows } = await client.query("SELECT state FROM orders WHERE name = $1", [name]);
  assert.deepEqual(rows, [{ state: "new" }]);
  await transaction(() => postgres.once(client, unique(), seven));
  await transaction(() => postgres.enter(client, "both", seven));
  await assert.rejects(
    transaction(() => postgres.once(client, "both", seven)),
    Repeated,
  );
  await assert.rejects(
    transaction(() => postgres.write(client, name, { token: held.token, mode: "shared" })),
    { name: "NotFenced", message: /shared may only enter/ },
  );
  await transaction(async () => {
    await postgres.enter(client, name + "/permits", { token: 5, mode: "permit", slot: 1 });
    await postgres.enter(client, name + "/permits", { token: 4, mode: "permit", slot: 2 });
  });
  const pool = new pg.Pool({ connectionString: POSTGRES_URL });
  for (const alone of [client, pool]) {
    await assert.rejects(postgres.write(alone, name, held), { name: "NotFenced", message: /no transaction is open/ });
  }
  await pool.end();
  assert.match(postgres.grantsSql("app"), /GRANT/);
  await assert.rejects(client.query("SELECT * FROM no_such_table"), { code: "42P01" });
  await held.release();
  await client.end();
});

test("Redis: check and commands are one step", async () => {
  const resends = new Redis(REDIS_URL, { lazyConnect: true });
  await assert.rejects(RedisFence.connect(resends), { name: "NotFenced", message: /autoResendUnfulfilledCommands/ });
  const redis = new Redis(REDIS_URL, { autoResendUnfulfilledCommands: false });
  const fence = await RedisFence.connect(redis);
  const [old, held] = await holders();
  const name = unique();
  await fence.enter(name, held);
  assert.deepEqual(
    await fence.write(name, held, [
      ["SET", key(name), 11],
      ["INCR", key(name)],
    ]),
    ["OK", 12],
  );
  await assert.rejects(fence.write(name, old, [["SET", key(name), 0]]), (error) => {
    assert.deepEqual([error.code, error.token, error.newest], ["STALE", old.token, held.token]);
    return error instanceof Stale;
  });
  assert.equal(await redis.get(name), "12");
  const next = { token: held.token + 1 };
  assert.deepEqual(await fence.once(name, next, [["INCR", key(name)]]), [13]);
  await assert.rejects(fence.once(name, next, [["INCR", key(name)]]), Repeated);
  await assert.rejects(fence.write(name, next, [["FLUSHALL"]]), { name: "NotFenced", message: /FLUSHALL/ });
  await assert.rejects(
    fence.write(name, next, [
      ["INCR", key("no:number")],
      ["LPUSH", key(name), 1],
    ]),
    (error) => {
      assert.deepEqual([error.code, error.done], ["EFFECT_FAILED", 1]);
      return error instanceof EffectFailed && /LPUSH/.test(error.message);
    },
  );
  await fence.enter("both", seven);
  await redis.config("SET", "maxmemory-policy", "allkeys-lru");
  await assert.rejects(RedisFence.connect(redis), { name: "NotFenced", message: /noeviction/ });
  await RedisFence.connect(redis, { trustsNoEviction: true });
  await redis.config("SET", "maxmemory-policy", "noeviction");
  redis.disconnect();
  await assert.rejects(fence.enter(name, next), { name: "NoAnswer" });
  await held.release();
});

test("DynamoDB: the check is the condition of the request", async () => {
  const client = new DynamoDBClient({
    endpoint: DYNAMODB_URL,
    region: "us-east-1",
    credentials: { accessKeyId: "x", secretAccessKey: "x" },
    maxAttempts: 1,
  });
  const fence = new DynamoDbFence(client);
  const [old, held] = await holders();
  const stock = { table: TABLE, key: { id: { S: unique() } } };
  const pieces = (count) => ({ update: { set: ["pieces = :n"], values: { ":n": { N: String(count) } } } });
  await fence.enter(stock, held);
  await fence.write(stock, held, pieces(11));
  await assert.rejects(fence.write(stock, old, pieces(0)), (error) => {
    assert.deepEqual([error.code, error.token, error.newest], ["STALE", old.token, held.token]);
    return error instanceof Stale;
  });
  const item = await fence.enter(stock, held);
  assert.deepEqual(item.pieces, { N: "11" });
  const next = { token: held.token + 1 };
  const bytes = new Uint8Array([0, 255]);
  await fence.once(stock, next, { put: { bytes: { B: bytes } } });
  await assert.rejects(fence.once(stock, next, pieces(1)), Repeated);
  assert.deepEqual(new Uint8Array((await fence.enter(stock, next)).bytes.B), bytes);
  await assert.rejects(fence.write(stock, next, { put: { lk_any: { N: "1" } } }), /lk_any/);
  await assert.rejects(fence.write(stock, next, { put: { n: 7 } }), { name: "InvalidOption", option: "put" });
  await held.release();
  client.destroy();
});

for (const [framework, serve] of Object.entries({
  express: async (t, options) => {
    const app = makeExpress();
    app.use(express(path.join(MARKS, "express.redb"), options));
    app.all("/stock", (request, response) => response.send("done"));
    const server = createServer(app).listen(0, "127.0.0.1");
    await once(server, "listening");
    t.after(() => server.close());
    return `http://127.0.0.1:${server.address().port}`;
  },
  fastify: async (t, options) => {
    const app = makeFastify();
    app.addHook("preHandler", fastify(path.join(MARKS, "fastify.redb"), options));
    app.all("/stock", async () => "done");
    t.after(() => app.close());
    return app.listen({ port: 0, host: "127.0.0.1" });
  },
})) {
  test(`${framework}: requests with stale tokens do not reach the handler`, async (t) => {
    const url = `${await serve(t, { needsToken: (request) => request.method !== "GET" })}/stock`;
    const send = async (method, headers) => {
      const response = await fetch(url, { method, headers: { connection: "close", ...headers } });
      return [response.status, await response.text()];
    };
    assert.deepEqual(await send("GET", {}), [200, "done"]);
    assert.equal((await send("PUT", {}))[0], 428);
    assert.deepEqual(await send("POST", { "fencing-token": "7", "fencing-action": "enter" }), [204, ""]);
    assert.deepEqual(await send("PUT", { "fencing-token": "7" }), [200, "done"]);
    assert.deepEqual(await send("PUT", { "fencing-token": "8" }), [200, "done"]);
    const [status, problem] = await send("PUT", { "fencing-token": "7" });
    assert.equal(status, 412);
    const { type, offered, highest } = JSON.parse(problem);
    assert.deepEqual({ type, offered, highest }, { type: "urn:lockkeeper:fence:stale", offered: 7, highest: 8 });
    assert.equal((await send("PUT", { "fencing-token": "x" }))[0], 400);
  });
}

test("express: a read ends with its answer, and a resource must have a name", async (t) => {
  const app = makeExpress();
  const fence = { wait: 200, resource: (request) => request.headers["x-resource"] };
  app.use(express(path.join(MARKS, "reads.redb"), fence));
  app.get("/stock", (request, response) => response.writeHead(200).write("first part"));
  app.get("/gone", (request) => request.socket.destroy());
  app.put("/stock", (request, response) => response.end());
  app.use((error, request, response, next) => response.status(500).end(error.message));
  const server = createServer(app).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.closeAllConnections());
  t.after(() => server.close());
  const send = (method, path, token, resource = { "x-resource": path }) =>
    fetch(`http://127.0.0.1:${server.address().port}${path}`, {
      method,
      headers: { "fencing-token": String(token), ...resource },
    });
  assert.equal((await send("GET", "/stock", 7)).status, 200);
  assert.equal((await send("PUT", "/stock", 8)).status, 200);
  await assert.rejects(send("GET", "/gone", 7, { "x-resource": "/stock/9" }));
  assert.equal((await send("PUT", "/stock", 8, { "x-resource": "/stock/9" })).status, 200);
  const unnamed = await send("PUT", "/stock", 9, {});
  assert.deepEqual([unnamed.status, /must name the resource/.test(await unnamed.text())], [500, true]);
});

test("express: a newer token waits for the handler, whose client may have gone", async (t) => {
  const app = makeExpress();
  app.use(express(path.join(MARKS, "waits.redb"), { wait: 200 }));
  const handlers = [];
  app.put("/stock", (request, response) => handlers.push(response));
  const server = createServer(app).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.closeAllConnections());
  t.after(() => server.close());
  const url = `http://127.0.0.1:${server.address().port}/stock`;
  const controller = new AbortController();
  const gone = fetch(url, { method: "PUT", headers: { "fencing-token": "7" }, signal: controller.signal });
  while (handlers.length === 0) await new Promise((resolve) => setImmediate(resolve));
  controller.abort();
  await assert.rejects(gone);
  const busy = await fetch(url, { method: "PUT", headers: { "fencing-token": "8" } });
  assert.equal(busy.status, 503);
  handlers[0].end();
  const next = fetch(url, { method: "PUT", headers: { "fencing-token": "8" } });
  while (handlers.length === 1) await new Promise((resolve) => setImmediate(resolve));
  handlers[1].end("done");
  assert.equal(await (await next).text(), "done");
});
