// The console of a cluster, at a node that does not lead. Arguments: its address.

import assert from 'node:assert/strict';

import { Client, NARROW, fits, picture, start } from './browser.mjs';

const [base] = process.argv.slice(2);
// The transfer to a node that is none is refused, which the browser logs.
const { open, end } = await start([/status of 4\d\d/]);
const client = new Client(base);
await client.open('worker-1');
const { token } = await client.acquire('orders/42');

const page = await open(`${base}/#/nodes`);
const members = page.getByRole('table', { name: 'Members' });
for (const node of [1, 2, 3]) await members.getByText(`node ${node}`).waitFor();
await members.getByText('leader', { exact: true }).waitFor();
await members.getByText('this node', { exact: true }).waitFor();
// The state of the other nodes comes through this one.
await page.getByText(/used, .* free$/).nth(2).waitFor();
await page.getByText('tolerates 1 failure').waitFor();
await picture(page, 'console-nodes-wide');
// A transfer asks for the number of the node that is to lead, and says who leads then.
const leader = (await client.call('GET', 'status')).leader;
const next = [1, 2, 3].find((node) => node !== leader);
assert.equal(await page.getByRole('button', { name: `Make node ${leader} the leader` }).count(), 0);
await page.getByRole('button', { name: `Make node ${next} the leader` }).click();
const dialog = page.getByRole('dialog');
const order = dialog.getByRole('button', { name: `Make node ${next} the leader` });
const typed = dialog.getByLabel(`Type the node’s number ${next} to confirm`);
await typed.fill(String(leader));
assert.ok(await order.isDisabled(), 'with another number');
await typed.fill(String(next));
await picture(page, 'console-transfer-wide');
await order.click();
await dialog.getByText(`Node ${next} leads.`).waitFor();
await dialog.getByText('Close', { exact: true }).click();
await page.getByText(`node ${next} leads`, { exact: true }).waitFor();
// What the service refuses is shown in its words.
await page.route('**/v1/transfer', (route) => route.continue({ postData: JSON.stringify({ node: 9 }) }));
await page.getByRole('button', { name: `Make node ${leader} the leader` }).click();
await typed.waitFor({ state: 'detached' });
await dialog.getByLabel('to confirm', { exact: false }).fill(String(leader));
await dialog.getByRole('button', { name: `Make node ${leader} the leader` }).click();
await dialog.getByText('The leadership was not transferred').waitFor();
await dialog.getByText('node 9 is no voter', { exact: false }).waitFor();
await page.keyboard.press('Escape');
// So does the audit trail: that of the leader, which has done what was ordered at this node.
await client.call('POST', 'set-limit', { name: 'orders/43', permits: 3 });
await page.goto(`${base}/#/audit`);
await page.getByText('orders/43').waitFor();
await page.goto(`${base}/#/locks?prefix=orders&flat=1`);
await page.getByText(String(token)).waitFor();

const phone = await open(`${base}/#/nodes`, { viewport: NARROW, colorScheme: 'dark' });
await phone.getByText('tolerates 1 failure').waitFor();
await phone.getByText(/used, .* free$/).nth(2).waitFor();
await fits(phone);
await picture(phone, 'console-nodes-narrow');
await end();
