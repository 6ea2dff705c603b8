// A page in Debian's Chromium, and what must never happen in it.

import assert from 'node:assert/strict';
import { pathToFileURL } from 'node:url';

/** Chromium must not call its maker, and needs no sandbox in a test. */
const ARGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
/** Beside other tests on two cores a page may be slow by a multiple. */
const DEADLINE_MS = 60_000;

const { chromium } = await import(pathToFileURL(`${process.env.LIBRARIES}/playwright-core/index.mjs`).href);

export const WIDE = { width: 1280, height: 800 };
export const NARROW = { width: 400, height: 800 };

/** A browser for a whole script; `allowed`: messages in its console that the script provokes. */
export async function start(allowed = []) {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ARGS });
  const wrong = [];

  /** Opens a tab. */
  async function open(url, { viewport = WIDE, colorScheme = 'light', javaScriptEnabled = true } = {}) {
    const context = await browser.newContext({ viewport, colorScheme, javaScriptEnabled, reducedMotion: 'reduce' });
    const page = await context.newPage();
    page.setDefaultTimeout(DEADLINE_MS);
    page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type()) && !allowed.some((it) => it.test(message.text()))) wrong.push(`console: ${message.text()}`);
    });
    page.on('pageerror', (error) => wrong.push(`error: ${error.stack}`));
    page.on('dialog', (dialog) => {
      wrong.push(`dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    page.on('request', (request) => {
      const target = new URL(request.url());
      if (target.protocol !== 'data:' && target.origin !== new URL(url).origin) wrong.push(`request to ${target}`);
    });
    await page.addInitScript(() => document.addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`)));
    await page.goto(url);
    return page;
  }

  /** Ends the browser. Fails if anything went wrong that no step has looked at. */
  async function end() {
    await browser.close();
    assert.deepEqual(wrong, []);
  }

  return { open, end };
}

/** Waits until a condition holds. */
export async function until(what, holds) {
  const deadline = Date.now() + DEADLINE_MS;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Keeps a picture, if a folder for them is given. */
export async function picture(page, name) {
  if (process.env.PICTURES) await page.screenshot({ path: `${process.env.PICTURES}/${name}.png` });
}

/** No part of the page is cut off at the right. */
export async function fits(page) {
  const [whole, seen] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  assert.ok(whole <= seen, `the page is ${whole} px wide, and the window ${seen}`);
}

/** A client of the service, by HTTP/JSON. */
export class Client {
  #base;
  #headers;
  #session = 0;
  #request = 0;

  constructor(base, token) {
    this.#base = base;
    const secret = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
    this.#headers = { 'content-type': 'application/json', 'lockkeeper-secret': secret, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  }

  async call(method, path, body) {
    const answer = await fetch(`${this.#base}/v1/${path}`, { method, headers: this.#headers, body: body && JSON.stringify(body) });
    const text = await answer.text();
    assert.ok(answer.ok, `${method} ${path}: ${text}`);
    return text === '' ? null : JSON.parse(text);
  }

  async open(label) {
    this.#session = (await this.call('POST', 'sessions', { ttl_ms: 600_000, label })).session;
    return this.#session;
  }

  async acquire(name, more = {}) {
    this.#request += 1;
    const body = { session: this.#session, request: this.#request, ...more };
    const path = name.split('/').map(encodeURIComponent).join('/');
    return { request: this.#request, ...(await this.call('POST', `locks/${path}`, body)) };
  }

  release(request) {
    return this.call('DELETE', `sessions/${this.#session}/requests/${request}`);
  }
}
