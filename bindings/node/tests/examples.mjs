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
const redis = () => new Redis(Number(REDIS.port), REDIS.hostname, { autoResendUnfulfilledCommands: false });

test("workers do every job once", async () => {
  const locks = (await connect(own)).fenced();
  const [store, stop] = [redis(), new AbortController()];
  const names = ["one", "two", "three"];
  const start = (name) => work(locks, redis(), store, name, stop.signal);
  const customer = unique();
  const jobs = Array.from({ length: 30 }, (_, id) => JSON.stringify({ id, customer, amount: 1 }));
  // One that has died has left a job.
  await store.rpush("jobs:taken:one", jobs[0]);
  await store.rpush("jobs", ...jobs.slice(1));
  const workers = names.map(start);
  const idle = async () => {
    const lists = await Promise.all(["jobs", ...names.map((name) => `jobs:taken:${name}`)].map((list) => store.llen(list)));
    return lists.every((length) => length === 0);
  };
  while (!(await idle())) await turn();
  assert.equal(await store.get(`balance:{${customer}}`), "30");
  // One that has died after its write has left its job.
  await store.rpush("jobs:taken:four", jobs[7]);
  names.push("four");
  workers.push(start("four"));
  while (!(await idle())) await turn();
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
