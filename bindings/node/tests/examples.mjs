// The examples, on real lock services.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Redis } from "ioredis";
import { connect } from "lockkeeper";
import { leadForever } from "../examples/leader.mjs";
import { handlers } from "../examples/route.mjs";
import { work } from "../examples/worker.mjs";
import { own, turn, unique } from "./support.mjs";

const REDIS = new URL(process.env.LOCKKEEPER_REDIS_URL);
const redis = () => new Redis(Number(REDIS.port), REDIS.hostname);

test("workers do every job once", async () => {
  const locks = (await connect(own)).fenced();
  const [store, stop] = [redis(), new AbortController()];
  const workers = Array.from({ length: 3 }, () => work(locks, redis(), store, stop.signal));
  const customer = unique();
  for (let job = 0; job < 30; job++) await store.rpush("jobs", JSON.stringify({ customer, amount: 1, job }));
  while (Number(await store.get(`balance:{${customer}}`)) < 30 || (await store.llen("jobs:taken")) > 0) await turn();
  assert.equal(await store.get(`balance:{${customer}}`), "30");
  stop.abort();
  await Promise.all(workers);
  store.disconnect();
});

test("an order is placed once", async () => {
  const placed = new Map();
  const orders = {
    find: async (id) => placed.get(id) ?? null,
    place: async (id, token) => {
      await turn();
      placed.set(id, { id, token, count: (placed.get(id)?.count ?? 0) + 1 });
      return placed.get(id);
    },
  };
  const servers = await Promise.all([own, own].map(async (url) => handlers((await connect(url)).fenced(), orders)));
  const id = unique();
  const post = (server) =>
    server.POST(new Request("http://localhost/orders", { method: "POST", body: JSON.stringify({ id }) }));
  const answers = await Promise.all([...servers, ...servers].map(post));
  assert.deepEqual(
    answers.map((answer) => answer.status),
    [200, 200, 200, 200],
  );
  assert.equal(placed.get(id).count, 1);
  await (await connect(own)).mutex(`orders/${id}`).run(async () => {
    assert.equal((await post(servers[0])).status, 409);
  });
});

test("one leads, and another one after it", async () => {
  const name = unique();
  const ticks = [];
  const stops = [new AbortController(), new AbortController()];
  const members = stops.map(async ({ signal }, member) => {
    const locks = (await connect(own)).fenced();
    await leadForever(locks, name, async (token) => void ticks.push([member, token]), signal);
  });
  while (ticks.length < 2) await turn();
  const [[first, token]] = ticks;
  assert.ok(ticks.every(([member]) => member === first));
  stops[first].abort();
  while (ticks.at(-1)[0] === first) await turn();
  assert.ok(ticks.at(-1)[1] > token);
  stops.forEach((stop) => stop.abort());
  await Promise.all(members);
});
