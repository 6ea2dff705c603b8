// The console of a cluster, at a node that does not lead. Arguments: its address.

import { Client, picture, start } from './browser.mjs';

const [base] = process.argv.slice(2);
const { open, end } = await start();
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
// So does the audit trail: that of the leader, which has done what was ordered at this node.
await client.call('POST', 'set-limit', { name: 'orders/43', permits: 3 });
await page.goto(`${base}/#/audit`);
await page.getByText('orders/43').waitFor();
await page.goto(`${base}/#/locks?prefix=orders&flat=1`);
await page.getByText(String(token)).waitFor();
await end();
