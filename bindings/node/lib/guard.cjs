"use strict";

const { Released, ReleaseNotConfirmed, checkNames } = require("./errors.cjs");
const { bridge, call, checked, guards, keepAlive, letGo } = require("./bridge.cjs");

// Node before 20.4 has none, and TypeScript's `await using` needs it.
if (Symbol.asyncDispose === undefined) {
  Object.defineProperty(Symbol, "asyncDispose", { value: Symbol.for("nodejs.asyncDispose") });
}

/** A lock that is held by this program, until it is released or lost. */
class Guard {
  #hold;
  #state = "held"; // 'held', 'lost', 'released'
  #loss = null;
  #controller = null;
  #counts = true;

  constructor(mode, hold, token, slot, index) {
    this.#hold = hold;
    this.mode = mode;
    this.tokenHint = token ?? undefined;
    this.slot = slot ?? undefined;
    this.index = index ?? undefined;
    guards.set(hold, this);
    keepAlive();
  }

  get signal() {
    if (this.#controller === null) {
      this.#controller = new AbortController();
      if (this.#loss) this.#controller.abort(this.#loss);
    }
    return this.#controller.signal;
  }

  get loss() {
    return this.#loss;
  }

  get isReleased() {
    return this.#state === "released";
  }

  get trouble() {
    return this.#state === "held" ? (checked(() => bridge.trouble(this.#hold)) ?? undefined) : undefined;
  }

  check(need = 0) {
    const hold = this.#held();
    checked(() => bridge.check(hold, need));
  }

  validFor() {
    const hold = this.#held();
    return checked(() => bridge.validFor(hold)) ?? Infinity;
  }

  async verify() {
    const hold = this.#held();
    await call((id) => bridge.verify(id, hold));
  }

  async setValue(value) {
    const hold = this.#held();
    await call((id) => bridge.setValue(id, hold, bytes(value)));
  }

  async downgrade() {
    const hold = this.#held();
    await call((id) => bridge.downgrade(id, hold));
    this.mode = "shared";
  }

  async release() {
    if (this.isReleased) this.#held();
    if (this.#loss) {
      this.#state = "released";
      throw this.#loss;
    }
    this.#end("released");
    await call((id) => bridge.release(id, this.#hold));
  }

  unref() {
    if (this.#counts) letGo();
    this.#counts = false;
    return this;
  }

  async [Symbol.asyncDispose]() {
    if (!this.isReleased) await this._finish();
  }

  /** Releases the lock after a section that has ended well. */
  async _finish() {
    try {
      await this.release();
    } catch (error) {
      // The section has ended while the lock was held, which becomes free when its ttl has passed.
      if (!(error instanceof ReleaseNotConfirmed)) throw error;
      process.emitWarning(error);
    }
  }

  _lose(loss) {
    this.#loss = loss;
    this.#end("lost");
    bridge.abandon(this.#hold);
    this.#controller?.abort(loss);
  }

  /** The number of the hold. Throws if there is none any more. */
  #held() {
    if (this.#state === "lost") throw this.#loss;
    if (this.#state === "released") throw new Released("the lock was released before; acquire it again");
    return this.#hold;
  }

  get _hold() {
    return this.#held();
  }

  #end(state) {
    this.#state = state;
    this.unref();
    guards.delete(this.#hold);
  }
}

/** A guard with a token, which the resource checks. */
class FencedGuard extends Guard {
  get token() {
    return this.tokenHint;
  }
}

/** Adds what a partition has to the class of its guard. */
const partition = (Base) =>
  class Partition extends Base {
    get isLeaving() {
      return this.loss !== null || checked(() => bridge.isLeaving(this._hold));
    }

    async leaving({ signal, ...others } = {}) {
      checkNames("`leaving`", others, ["signal"]);
      await call((id) => bridge.leaving(id, this._hold), signal);
    }
  };

/** Runs a section under a lock, as `await using` does it. The section's own error comes first. */
async function run(guard, section) {
  let result;
  try {
    result = await section(guard);
  } catch (error) {
    await guard[Symbol.asyncDispose]().catch(() => {});
    // What the guard's signal has stopped was stopped by the loss.
    throw guard.loss && error?.name === "AbortError" ? guard.loss : error;
  }
  await guard[Symbol.asyncDispose]();
  return result;
}

function bytes(value) {
  return typeof value === "string" ? Buffer.from(value) : value;
}

module.exports = { FencedGuard, Guard, bytes, partition, run };
