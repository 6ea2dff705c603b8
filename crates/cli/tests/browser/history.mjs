// The page of `lockkeeper verify --html`: a violation is found by a click, by keys, and without JavaScript. Argument: the page's file. Its history
// has two violations; one lock has the name HOSTILE.

import assert from 'node:assert/strict';
import { pathToFileURL } from 'node:url';

import { NARROW, fits, picture, start, until } from './browser.mjs';

const HOSTILE = '</script><img src=x onerror=alert(1)>';
const address = pathToFileURL(process.argv[2]).href;
const { open, end } = await start();

/** The part of the history that the timeline shows, in nanoseconds. */
const view = (page) => page.evaluate(() => state.view);
const length = async (page) => {
  const { from, to } = await view(page);
  return to - from;
};
/** The names of the rows of the timeline, from the top. */
const rows = (page) => page.evaluate(() => state.rows.map((row) => row.name));

const page = await open(address);
const [first, second] = await page.locator('[data-violation]').all();
await picture(page, 'history-wide');

// The second one, then the first: its lines are visible, those of the other are not, and the timeline shows them.
await second.click();
await page.locator('#proof2').waitFor();
assert.equal(await second.getAttribute('aria-current'), 'true');
await first.click();
await page.locator('#proof1').waitFor();
assert.ok(await page.locator('#proof2').isHidden());
const lines = page.locator('#proof1 li');
assert.equal(await lines.count(), 4);
for (const line of await lines.all()) assert.ok(await line.isVisible());
assert.ok((await first.innerText()).includes(`${HOSTILE} was held by early with token 101 and by late with token 102 at once`));
assert.ok((await lines.first().innerText()).includes(`early was granted ${HOSTILE} with token 101`));
assert.equal(await page.locator('img').count(), 0);
const { from, to } = await view(page);
const moment = await page.evaluate(() => data.violations[0].moment);
assert.ok(from < moment[0] && moment[1] < to && to - from < 20 * (moment[1] - moment[0]), `${from} ${to}`);
assert.deepEqual((await rows(page)).slice(0, 2), ['early', 'late']);
const json = lines.first().locator('code').last();
assert.ok(await json.isHidden());
await lines.first().locator('summary').click();
assert.equal(JSON.parse(await json.innerText()).token, 101);

// By keys, buttons and the wheel.
await second.focus();
await page.keyboard.press('Enter');
await page.locator('#proof2').waitFor();
const timeline = page.locator('#rows');
await timeline.focus();
const whole = await length(page);
await page.keyboard.press('+');
assert.ok((await length(page)) < whole);
const before = await view(page);
await page.keyboard.press('ArrowRight');
assert.ok((await view(page)).from > before.from);
await page.locator('#out').click();
assert.ok((await length(page)) > before.to - before.from);
await timeline.hover({ position: { x: 400, y: 60 } });
const unwheeled = await length(page);
await page.mouse.wheel(0, -200);
await until('the wheel has zoomed', async () => (await length(page)) < unwheeled);
await timeline.focus();
await page.keyboard.press('0');
assert.equal(await page.locator('.proof:visible').count(), 0);

// Rows by lock, and by what is searched for.
await page.locator('[value="lock"]').check({ force: true });
assert.ok((await rows(page)).includes(HOSTILE));
await page.locator('#search').fill('102');
assert.deepEqual(await rows(page), [HOSTILE]);
await page.locator('#search').fill('nothing of this name');
await page.locator('#empty').waitFor();
await page.locator('#search').fill('');

// What the mouse is on is told.
await first.click();
const place = await page.evaluate(() => new Promise((done) => {
  requestAnimationFrame(() => {
    const [x, y, width, height] = state.boxes.find(([, , , , item]) => item.line.token === 102);
    done({ x: x + width / 2, y: y + height / 2 });
  });
}));
await timeline.hover({ position: place });
await page.getByText(`${HOSTILE}, token 102`, { exact: false }).last().waitFor();

const phone = await open(address, { viewport: NARROW, colorScheme: 'dark' });
await phone.locator('#proof1').waitFor();
await picture(phone, 'history-narrow');
await fits(phone);

const plain = await open(address, { javaScriptEnabled: false });
for (const proof of ['#proof1', '#proof2']) await plain.locator(proof).waitFor();
await end();
