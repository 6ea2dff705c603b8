// The first page: calm while nothing is wrong, else a line for each thing. Arguments: the node's address.

import assert from 'node:assert/strict';

import { Client, NARROW, fits, picture, start } from './browser.mjs';

const DAY_SECONDS = 86_400;

const [base] = process.argv.slice(2);
const { open, end } = await start();
const worker = new Client(base);
await worker.open('worker-1 on host-a');

const page = await open(`${base}/`);
const main = page.getByRole('main');
const table = (name) => main.getByRole('table', { name });
await main.getByText('Nothing needs attention').waitFor();
await main.getByText('Nobody holds a lock.').waitFor();
await main.getByText('Nobody waits.').waitFor();
assert.ok(await main.getByRole('heading', { name: 'Nodes' }).isHidden());

// The oldest holds and the longest queues are no alarms.
const held = await worker.acquire('orders/import', { meta: 'import of the day' });
for (const name of ['orders/42', 'orders/43', 'reports/weekly', 'users/<b>7</b>', 'gpu/0']) await worker.acquire(name);
for (let index = 0; index < 4; index += 1) {
  const waiter = new Client(base);
  await waiter.open(`waiter-${index}`);
  await waiter.acquire('orders/import', { wait: true, poll_ms: 0 });
  if (index < 2) await waiter.acquire('gpu/0', { wait: true, poll_ms: 0 });
}
await table('Longest queues').getByRole('row', { name: /orders\/import .* 4$/ }).waitFor();
await table('Oldest holds').getByText('import of the day').waitFor();
const lines = await table('Oldest holds').getByRole('row').count();
assert.equal(lines, 1 + 5, 'a head and five lines');
assert.equal(await table('Oldest holds').getByText('gpu/0').count(), 0, 'the youngest');
// News that was long on its way makes a hold look younger than it is: the service's clock decides.
const first = await page.evaluate(async () => {
  const { extremesOf } = await import('/console/lock-extremes.js');
  const { lockOf } = await import('/console/lock-model.js');
  const hold = (token, held_for_ms, since) => ({ token, held_for_ms, since });
  const late = lockOf({ name: 'late', holds: [hold(1, 10, '2026-01-01T00:00:00.100Z')] }, 0);
  const prompt = lockOf({ name: 'prompt', holds: [hold(2, 1_000, '2026-01-01T00:00:00.110Z')] }, 0);
  return extremesOf([prompt, late], 1).oldest[0].lock.name;
});
assert.equal(first, 'late');
await main.getByText('Nothing needs attention').waitFor();

// A break in progress is a thing, and leads to the lock.
await worker.call('POST', 'break', { name: 'orders/import', token: held.token, reason: 'the host hangs', by: 'ann' });
await main.getByText('1 thing needs attention').waitFor();
await table('Being broken, or closed').getByText('the host hangs').waitFor();
await table('Being broken, or closed').getByRole('link', { name: 'orders/import' }).click();
await page.getByRole('button', { name: `Break the hold with token ${held.token}` }).waitFor();

// What a healthy node does not show: a member out of reach, a session without its client, a certificate that ends.
const phone = await open(`${base}/#/locks`, { viewport: NARROW });
const wide = await open(`${base}/#/locks`);
for (const [tab, name] of [[wide, 'console-attention-wide'], [phone, 'console-attention-narrow']]) {
  const altered = (path, change) => tab.route(path, async (route) => {
    const answer = await route.fetch();
    const json = await answer.json();
    change(json);
    await route.fulfill({ json });
  });
  await altered('**/v1/sessions?*', ({ sessions }) => Object.assign(sessions.find(({ label }) => label === 'waiter-1'), { attached: false, left_ms: 190_000 }));
  await altered('**/v1/members', ({ nodes }) => nodes.push({ ...nodes[0], node: 2 }, { ...nodes[0], node: 3, answers: false }));
  await altered('**/v1/status*', (json) => Object.assign(json, { certificate_ends: Math.floor(Date.now() / 1_000) + 12.5 * DAY_SECONDS }));
  await tab.goto(`${base}/#/attention`);
  await tab.getByText('5 things need attention').waitFor();
  for (const text of ['Node 3 does not answer.', 'tolerates no failure', 'The certificate of node 1 ends in 12 days.']) await tab.getByText(text, { exact: false }).waitFor();
  await tab.getByRole('table', { name: 'Sessions about to end' }).getByText('3 min 10 s of 10 min').waitFor();
  await fits(tab);
  await picture(tab, name);
}
await wide.getByRole('table', { name: 'Sessions about to end' }).getByRole('link').click();
await wide.getByRole('heading', { name: /^Session \d+$/ }).waitFor();

// The same, and more, stands above the nodes.
await wide.route('**/v1/members', async (route) => {
  const json = await (await route.fetch()).json();
  const [own] = json.nodes;
  await route.fulfill({ json: { ...json, last: 20_000, nodes: [{ ...own, matched: 20_000 }, { ...own, node: 2, matched: 0 }, { ...own, node: 3, answers: false, data_lost: true }] } });
});
await wide.route('**/v1/status*', async (route) => {
  const json = await (await route.fetch()).json();
  await route.fulfill({ json: { ...json, disk_state: 'low', disk_free_bytes: 95e6, disk_full_in_seconds: 1_300, audit_error: 'no space <i>left</i>', backup_error: 'no such folder' } });
});
await wide.goto(`${base}/#/nodes`);
for (const text of ['Node 2 is 20,000 entries behind the leader.', 'The data of node 3 are lost', 'tolerates no failure', 'The disk of node 1 has little room left (90.6 MiB free), and will be full in 21 min 40 s.', 'can’t write its audit file: no space <i>left</i>', 'fails to make the backups of its schedule: no such folder']) {
  await wide.getByText(text, { exact: false }).first().waitFor();
}
// An answer that is on its way when the browser ends is no failure.
for (const tab of [wide, phone]) await tab.unrouteAll({ behavior: 'ignoreErrors' });
await end();
