// The lists of locks and sessions: sorted by their columns, and all holds below a name broken. Arguments: the node's address.

import assert from 'node:assert/strict';

import { Client, NARROW, fits, picture, start, until } from './browser.mjs';

const [base] = process.argv.slice(2);
// A hold that the script refuses to break.
const { open, end } = await start([/status of 403/]);
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

// All holds below a name: the order names them, asks for their number, and says what came of each.
const dialog = page.getByRole('dialog');
const folder = (name) => page.getByRole('row', { name: new RegExp(`^${name}`) });
const jobs = Array.from({ length: 7 }, (_, index) => `jobs/<b>${index}`);
for (const job of jobs) await worker.acquire(job);
await page.goto(`${base}/#/locks`);
await page.getByRole('button', { name: 'Collapse' }).click();
await folder('jobs').hover();
await folder('jobs').getByRole('button', { name: 'Break all below…' }).click();
const order = dialog.getByRole('button', { name: /^Break 7 holds/ });
await dialog.getByText('7, on 7 locks').waitFor();
await dialog.getByText('and 2 more').waitFor();
await dialog.getByLabel('Now', { exact: false }).check();
await dialog.getByLabel('Reason', { exact: false }).fill('the batch is cancelled');
const typed = dialog.getByLabel('Type the number of holds 7 to confirm');
await typed.fill('6');
assert.ok(await order.isDisabled(), 'with another number');
await typed.fill('7');
await picture(page, 'console-break-all-wide');
const forbidden = { title: 'Forbidden', status: 403, code: 'denied', detail: 'you may not break <b>3' };
let broken = 0;
let first = true;
let go = () => {};
const isHeld = new Promise((resolve) => (go = resolve));
await page.route('**/v1/break', async (route) => {
  broken += 1;
  if (first && broken === 3) await isHeld;
  if (!first && route.request().postDataJSON().name === 'jobs/<b>3') return route.fulfill({ status: 403, contentType: 'application/problem+json', json: forbidden });
  return route.continue().catch(() => {});
});
// To close the dialog stops the order, and cancels the call that is on its way: only then may the route go on, or it sends
// the call.
const isCancelled = page.waitForEvent('requestfailed', (request) => request.url().endsWith('/v1/break'));
await order.click();
await until('the third call is made', () => broken === 3);
await dialog.getByText('0 of 7 holds', { exact: false }).waitFor();
await dialog.getByRole('button', { name: 'Stop' }).click();
await dialog.waitFor({ state: 'detached' });
await isCancelled;
go();
const holding = async () => {
  const locks = await Promise.all(jobs.map((job) => worker.call('GET', `locks/${encodeURIComponent(job)}`)));
  return locks.filter(({ holds }) => holds.length > 0).length;
};
await page.getByRole('row', { name: /^jobs.*5 locks/ }).waitFor();
assert.equal(broken, 3);
// By key, for the rest, of which one is refused.
first = false;
await page.getByRole('treegrid').focus();
await page.keyboard.press('Home');
await page.keyboard.press('Delete');
await dialog.getByText('5, on 5 locks').waitFor();
await dialog.getByLabel('Now', { exact: false }).check();
await dialog.getByLabel('Reason', { exact: false }).fill('the batch is cancelled');
await dialog.getByLabel('Type the number of holds 5 to confirm').fill('5');
await page.keyboard.press('Enter');
await dialog.getByText('4 holds broken, 1 not').waitFor();
await dialog.getByText('you may not break <b>3').waitFor();
await picture(page, 'console-broken-all-wide');
assert.equal(await holding(), 1);
await dialog.getByText('Close', { exact: true }).click();
await until('one lock is left', async () => (await folder('jobs').count()) === 1 && /1 lock\b/.test(await folder('jobs').innerText()));
await page.unrouteAll({ behavior: 'ignoreErrors' });
await end();
