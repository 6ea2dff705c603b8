// The lists of locks and sessions, sorted by their columns. Arguments: the node's address.

import assert from 'node:assert/strict';

import { Client, NARROW, fits, picture, start, until } from './browser.mjs';

const [base] = process.argv.slice(2);
const { open, end } = await start();
const worker = new Client(base);
const waiter = new Client(base);
await worker.open('worker-1 on host-a');
await waiter.open('api-2 on host-b');
for (const name of ['orders/42', 'orders/<i>43', 'pool']) await worker.acquire(name);
for (let count = 0; count < 2; count += 1) await waiter.acquire('orders/42', { wait: true, poll_ms: 0 });
await waiter.acquire('pool', { wait: true, poll_ms: 0 });

const page = await open(`${base}/#/locks`);
/** Waits for the links of the rows, from top to bottom: in the document they are not in this order. */
const isOrder = async (names) => {
  const links = page.getByRole('row').getByRole('link');
  const shown = () => links.evaluateAll((all) => all.filter((it) => it.checkVisibility()).map((it) => [it.getBoundingClientRect().top, it.textContent]).sort(([a], [b]) => a - b).map(([, text]) => text));
  let last;
  await until(`the order is ${names}`, async () => (last = await shown()).join() === names.join()).catch((error) => assert.fail(`${error.message}, but ${last}`));
};
const head = (name) => page.getByRole('columnheader', { name });
const isSorted = async (name, order) => assert.equal(await head(name).getAttribute('aria-sort'), order);

// A head sorts: one way, the other, and back. Of the locks that is a flat list.
await page.getByRole('button', { name: 'Expand' }).click();
await isOrder(['orders', '42', '<i>43', 'pool']);
await head('Held for').getByRole('button').click();
await isOrder(['orders/42', 'orders/<i>43', 'pool']);
await isSorted('Held for', 'descending');
assert.equal(await page.getByRole('button', { name: 'Flat list' }).getAttribute('aria-pressed'), 'true');
// By keyboard as well.
await page.keyboard.press('Enter');
await isOrder(['pool', 'orders/<i>43', 'orders/42']);
await isSorted('Held for', 'ascending');
await head('Waiting').getByRole('button').click();
await isOrder(['orders/42', 'pool', 'orders/<i>43']);
// What changes finds its place, and the address has the order.
for (let count = 0; count < 3; count += 1) await waiter.acquire('orders/<i>43', { wait: true, poll_ms: 0 });
await isOrder(['orders/<i>43', 'orders/42', 'pool']);
await page.reload();
await isOrder(['orders/<i>43', 'orders/42', 'pool']);
await isSorted('Waiting', 'descending');
await picture(page, 'console-sorted-wide');
await page.getByRole('button', { name: 'Flat list' }).click();
await page.getByRole('button', { name: 'Expand' }).click();
await page.getByRole('row', { name: /orders.*2 locks/ }).waitFor();

await page.goto(`${base}/#/sessions`);
await isOrder(['1', '2']);
await isSorted('Session', 'ascending');
await head('Label').getByRole('button').click();
await isOrder(['2', '1']);
await head('Label').getByRole('button').click();
await isOrder(['1', '2']);
await isSorted('Label', 'descending');
await head('Requests').getByRole('button').click();
await isOrder(['2', '1']);
// Nothing is cut off: the longest text of this cell.
const rest = page.getByText(/^9 min \d+ s of 10 min$/).first();
assert.ok(await rest.evaluate((it) => it.getBoundingClientRect().right <= it.closest('[role="gridcell"]').getBoundingClientRect().right), 'the rest of the ttl is cut off');
await picture(page, 'console-sessions-wide');

const phone = await open(`${base}/#/sessions`, { viewport: NARROW });
await phone.getByText('api-2 on host-b').waitFor();
await fits(phone);
await picture(phone, 'console-sessions-narrow');
await end();
