// The console, as an operator uses it while other clients change the locks. Arguments: the node's address.

import assert from 'node:assert/strict';

import { Client, NARROW, fits, picture, start, until } from './browser.mjs';

const HOSTILE = 'evil/<img src=x onerror=alert(1)>?#% "';
const MANY = 10_000;
const NAMES_PER_REQUEST = 64;

const [base] = process.argv.slice(2);
const { open, end } = await start();

const worker = new Client(base);
const waiter = new Client(base);
await worker.open('worker-1');
await waiter.open('waiter-1');
const held = await worker.acquire('orders/42', { meta: 'import of the day' });
await worker.acquire(HOSTILE);
await worker.acquire('pool/db', { mode: 'permit', permits: 3 });

const page = await open(`${base}/#/locks`);
await page.getByRole('button', { name: 'Expand' }).click();
const row = (name) => page.getByRole('row').filter({ has: page.getByRole('link', { name, exact: true }) });

// What is held is there, and what another client does is seen at once.
await row('42').getByText(String(held.token)).waitFor();
await row('42').getByText('worker-1').waitFor();
await row(HOSTILE.split('/')[1]).waitFor();
const another = await worker.acquire('orders/43');
await row('43').getByText(String(another.token)).waitFor();
await worker.release(another.request);
await until('the released lock is gone', async () => (await row('43').count()) === 0);
const queued = await waiter.acquire('orders/42', { wait: true, poll_ms: 0 });
assert.equal(queued.state, 'queued');
await until('the waiter is counted', async () => /\b1$/.test((await row('42').innerText()).trim()));
await picture(page, 'console-locks-wide');

// A break asks for the reason and the token, says what it does, and is in the audit trail.
await page.goto(`${base}/#/lock/orders/42`);
await page.getByRole('button', { name: `Break the hold with token ${held.token}` }).click();
const order = page.getByRole('button', { name: 'Break the hold', exact: true });
await page.getByLabel('Reason', { exact: false }).fill('the host is gone');
await page.getByLabel('Ordered by', { exact: false }).fill('ann');
const typed = page.getByLabel(`Type the token ${held.token} to confirm`);
await typed.fill(String(held.token + 1));
assert.ok(await order.isDisabled(), 'with another token');
await typed.fill(String(held.token));
await picture(page, 'console-break-wide');
await order.click();
await page.getByText('The holder is told to stop', { exact: false }).waitFor();
await page.getByText('Close', { exact: true }).click();
await page.getByText('being broken').first().waitFor();
const [hold] = (await worker.call('GET', 'locks/orders/42')).holds;
assert.deepEqual([hold.state, hold.break_by, hold.break_reason], ['revoked', 'ann', 'the host is gone']);

await page.getByRole('button', { name: `Break the hold with token ${held.token}` }).click();
await page.getByLabel('Now', { exact: false }).check();
await page.getByLabel('Reason', { exact: false }).fill('it does not stop');
await page.getByLabel(`Type the token ${held.token} to confirm`).fill(String(held.token));
await page.getByRole('button', { name: 'Break the hold now' }).click();
await page.getByText('Close', { exact: true }).click();
const next = (await worker.call('GET', 'locks/orders/42')).holds[0].token;
assert.ok(next > held.token);
await page.getByRole('table', { name: 'Holds' }).getByText(String(next)).waitFor();
await page.getByRole('list').getByText(`token ${next}`).first().waitFor();
await page.getByText('it does not stop').first().waitFor();
await picture(page, 'console-lock-wide');
// What was ordered is still there for who opens the page later, with who has ordered it.
await page.reload();
const ordered = page.getByRole('listitem').filter({ hasText: 'audit trail' });
await ordered.filter({ hasText: `token ${held.token} break, ordered by anonymous` }).filter({ hasText: 'it does not stop' }).waitFor();
assert.equal(await ordered.count(), 2);

// The number of permits.
await page.goto(`${base}/#/lock/pool/db`);
await page.getByRole('button', { name: 'Set limit…' }).click();
await page.getByRole('dialog').getByRole('spinbutton').fill('6');
await page.keyboard.press('Enter');
await until('the limit is set', async () => (await worker.call('GET', 'locks/pool/db')).permits === 6);
await page.keyboard.press('Escape');

// A name that contains markup is text everywhere.
await page.goto(`${base}/#/lock/${HOSTILE.split('/').map(encodeURIComponent).join('/')}`);
await page.getByRole('heading', { name: '<img src=x onerror=alert(1)>', exact: false }).waitFor();

await page.goto(`${base}/#/sessions`);
await page.getByText('waiter-1').first().waitFor();
// A session is ended by its number: while its client is attached only if that is asked for.
const dead = new Client(base);
const session = await dead.open('dead-host');
await dead.acquire('orders/77');
await page.goto(`${base}/#/session/${session}`);
await page.getByText('orders/77').waitFor();
const cutOff = (all) => all.filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.innerText);
assert.deepEqual(await page.locator('.facts-list dd').evaluateAll(cutOff), [], 'facts that run into the next ones');
await picture(page, 'console-session-wide');
await page.getByRole('button', { name: 'End the session…' }).click();
const ends = page.getByRole('button', { name: 'End the session', exact: true });
await page.getByLabel('Reason', { exact: false }).fill('the host has died');
await page.getByLabel(`Type the number ${session} to confirm`).fill(`${session}0`);
assert.ok(await ends.isDisabled(), 'with another number');
await page.getByLabel(`Type the number ${session} to confirm`).fill(`${session}`);
await page.getByLabel('Even if its client is attached', { exact: false }).check();
await picture(page, 'console-end-session-wide');
await ends.click();
await page.getByText('The session has ended', { exact: false }).waitFor();
await page.getByText('Close', { exact: true }).click();
await page.getByText('This session is not live', { exact: false }).waitFor();
assert.equal((await worker.call('GET', 'locks/orders/77')).holds.length, 0);
await page.goto(`${base}/#/nodes`);
await page.getByText('node 1').first().waitFor();
await page.getByText('leader').first().waitFor();
await page.goto(`${base}/#/audit`);
await page.getByText('it does not stop').waitFor();
await page.getByText('the host has died').waitFor();
await page.getByText('set-limit').waitFor();
await picture(page, 'console-audit-wide');

// Ten thousand locks: only those that are seen are in the document, and all can be reached.
for (let first = 0; first < MANY; first += NAMES_PER_REQUEST) {
  const count = Math.min(NAMES_PER_REQUEST, MANY - first);
  const [name, ...also] = Array.from({ length: count }, (_, index) => `many/${String(first + index).padStart(5, '0')}`);
  await waiter.acquire(name, { also });
}
await page.goto(`${base}/#/locks?prefix=many`);
await page.getByText('10,000 locks', { exact: false }).first().waitFor();
await page.getByRole('button', { name: 'Expand' }).click();
await row('00000').waitFor();
assert.ok((await page.getByRole('row').count()) < 100, 'rows in the document');
await page.getByRole('treegrid').focus();
await page.keyboard.press('End');
await row('09999').waitFor();
await page.locator('#search').fill('many/0500');
await row('05003').waitFor();

// A narrow window, in the dark.
const phone = await open(`${base}/#/locks?prefix=orders`, { viewport: NARROW, colorScheme: 'dark' });
await phone.getByRole('button', { name: 'Expand' }).click();
await phone.getByText('waiter-1').waitFor();
// How long a lock is held is there too.
assert.match(await phone.getByRole('row').filter({ hasText: 'waiter-1' }).innerText(), /\d+ s/);
await phone.getByText('Live', { exact: true }).waitFor();
await picture(phone, 'console-locks-narrow');
for (const view of ['attention', 'locks', 'lock/orders/42', 'sessions', 'nodes', 'audit']) {
  await phone.goto(`${base}/#/${view}`);
  await phone.getByRole('main').getByText(/./).first().waitFor();
  await fits(phone);
}
await phone.goto(`${base}/#/lock/orders/42`);
await phone.getByText('it does not stop').waitFor();
await picture(phone, 'console-lock-narrow');
await phone.goto(`${base}/#/session/1`);
await phone.getByText('Left of its ttl').waitFor();
assert.deepEqual(await phone.locator('.facts-list dd').evaluateAll(cutOff), []);
await picture(phone, 'console-session-narrow');
await phone.goto(`${base}/#/audit`);
await phone.getByText('it does not stop').waitFor();
await picture(phone, 'console-audit-narrow');
await end();
