// The console of a node that asks who calls. Arguments: its address, a token that may read locks below `orders`.

import { Client, start } from './browser.mjs';

const [base, token] = process.argv.slice(2);
const { open, end } = await start([/status of 40[13]/]);
const client = new Client(base, token);
await client.open('worker-1');
const held = await client.acquire('orders/42');

const page = await open(`${base}/#/lock/orders/42`);
const dialog = page.getByRole('dialog');
// Without a token, and without TLS, everybody is anonymous, who may do nothing here.
await page.getByText('anonymous may not read', { exact: false }).first().waitFor();
await page.getByRole('button', { name: 'Sign in' }).first().click();
await dialog.getByLabel('Token').fill('made-up');
await page.keyboard.press('Enter');
await dialog.getByText('does not know the token', { exact: false }).waitFor();
await dialog.getByLabel('Token').fill(token);
await page.keyboard.press('Enter');
await page.getByText(String(held.token)).first().waitFor();
// What it may not see is refused in its place, and the rest goes on.
await page.goto(`${base}/#/sessions`);
await page.getByText('may not read', { exact: false }).first().waitFor();
await page.goto(`${base}/#/attention`);
await page.getByText('the sessions (without the permission)', { exact: false }).waitFor();
await page.goto(`${base}/#/lock/orders/42`);
await page.getByText(String(held.token)).first().waitFor();
await page.getByText('No change since this console was opened.', { exact: true }).waitFor();
await page.getByRole('button', { name: 'Sign out' }).click();
await page.getByText('anonymous may not read', { exact: false }).first().waitFor();
await end();
