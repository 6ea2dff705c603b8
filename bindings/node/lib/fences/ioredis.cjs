"use strict";

// The fence of Redis, on a connection of `ioredis`: the Rust fence, whose commands this connection sends.

const { bridge, call, connect } = require("../bridge.cjs");
const { NotFenced } = require("../errors.cjs");

/** Marks a word of a command as a key. */
class Key {
  constructor(name) {
    this.name = name;
  }
}

function key(name) {
  return new Key(name);
}

/** A command as the native module takes it. */
function command(words) {
  return {
    words: words.map((word) => bytes(word instanceof Key ? word.name : word)),
    keys: words.flatMap((word, at) => (word instanceof Key ? [at] : [])),
  };
}

function bytes(word) {
  return Buffer.from(word instanceof Uint8Array ? word : String(word));
}

/** Only the fields that a fence needs. */
function sectionOf({ token, mode, slot }) {
  return { token, mode, slot };
}

class RedisFence {
  #native;
  // The connection's number is given up when this is garbage.
  #owner;

  constructor(native, owner) {
    this.#native = native;
    this.#owner = owner;
  }

  static async connect(redis, { trustsNoEviction = false } = {}) {
    if (redis.options?.autoResendUnfulfilledCommands !== false) {
      throw new NotFenced(
        "this connection sends commands again after it was interrupted, and a write that is sent twice may be done twice; " +
          "give a `new Redis(…, { autoResendUnfulfilledCommands: false })`",
      );
    }
    const owner = {};
    const connection = connect(owner, ([name, ...words]) => redis.callBuffer(name.toString(), ...words));
    return new RedisFence(await call((id) => bridge.redisFence(id, connection, trustsNoEviction)), owner);
  }

  async #pass(action, resource, section, commands) {
    const words = commands.map(command);
    const start = (id) => bridge.redisPass(id, this.#native, action, resource, sectionOf(section), words);
    return JSON.parse(await call(start));
  }

  async enter(resource, section) {
    await this.#pass("enter", resource, section, []);
  }

  async write(resource, section, commands) {
    return this.#pass("write", resource, section, commands);
  }

  async once(resource, section, commands) {
    return this.#pass("check_once", resource, section, commands);
  }
}

module.exports = { RedisFence, key };
