// The hazard player: every story with everything that the account can check is played to its end, on a node and from a file. Arguments: the node's
// address, the file of `lockkeeper explain --json`, that of `lockkeeper explain --html`.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

import { NARROW, fits, picture, start, until } from './browser.mjs';

const [base, storiesFile, pageFile] = process.argv.slice(2);
const stories = readFileSync(storiesFile, 'utf8').trim().split('\n').map((line) => JSON.parse(line));
const { open, end } = await start([/status of 400/]);

/** What the page shows, if it shows the play of this story and fence. */
const shown = (page) => page.evaluate(() => ({ ...document.body.dataset, outcome: { ...document.getElementById('outcome').dataset } }));

/** Waits until a play of the story is shown; with any fence, unless one is given. */
async function isReady(page, story, fence) {
  await until(`${story} with ${fence ?? 'any fence'} is shown`, async () => {
    const { ready, story: name, fence: checked } = await shown(page);
    return ready === 'true' && name === story && (fence === undefined || checked === fence);
  });
}

async function isAsPlayed(page, { steps, outcome }) {
  const { step, steps: count, outcome: said } = await shown(page);
  assert.equal(Number(count), steps.length);
  assert.equal(Number(step), steps.length - 1);
  assert.deepEqual([said.verdict, Number(said.balance), Number(said.expected), Number(said.refused)], [outcome.verdict, outcome.balance, outcome.expected, outcome.refused]);
  const text = await page.locator('#outcome').innerText();
  assert.ok(text.toLowerCase().includes(outcome.text.toLowerCase()), text);
}

for (const address of [`${base}/hazard`, pathToFileURL(pageFile).href]) {
  const page = await open(address);
  for (const { name, traces } of stories) {
    await page.locator(`[data-story-link="${name}"]`).click();
    // The address changes first, and the page follows it: a fence that is chosen at once would be of the story before.
    await isReady(page, name);
    for (const [fence, trace] of Object.entries(traces)) {
      await page.locator(`input[name="fence"][value="${fence}"]`).check({ force: true });
      await isReady(page, name, fence);
      // Forth by steps, and to the end.
      await page.locator('#to-start').click();
      await page.locator('#step-forward').click();
      assert.equal((await shown(page)).step, '0');
      await page.locator('#to-end').click();
      await isAsPlayed(page, trace);
    }
  }
}

// Played by itself, it comes to the end.
const page = await open(`${base}/hazard#story=paused-holder&fence=none`);
await isReady(page, 'paused-holder', 'none');
await picture(page, 'hazard-start-wide');
await page.locator('#to-start').click();
await page.locator('#speed').selectOption('4');
await page.locator('#play').click();
const { none } = stories.find(({ name }) => name === 'paused-holder').traces;
await until('the play has ended', async () => Number((await shown(page)).step) === none.steps.length - 1);
await isAsPlayed(page, none);
await picture(page, 'hazard-end-wide');

// Other settings are played by the node: a short pause loses nothing.
await page.goto(`${base}/hazard#story=paused-holder&fence=none&pause-for=2000ms`);
await until('the other play is shown', async () => {
  const { ready, outcome } = await shown(page);
  return ready === 'true' && outcome.verdict === 'kept' && outcome.balance === '20';
});
await page.goto(`${base}/hazard#story=paused-holder&fence=none&ttl=1000ms`);
await page.getByText('it must be a duration', { exact: false }).first().waitFor();

const phone = await open(`${base}/hazard#story=enter&fence=enter`, { viewport: NARROW, colorScheme: 'dark' });
await isReady(phone, 'enter', 'enter');
await phone.locator('#to-end').click();
await picture(phone, 'hazard-end-narrow');
await fits(phone);
await end();
