'use strict'

// The fence of Redis, on a connection of `ioredis`: the Rust fence, whose commands this connection sends.

const { bridge, call, connect } = require('../bridge.cjs')

/** Marks a word of a command as a key. */
class Key {
  constructor(name) {
    this.name = name
  }
}

function key(name) {
  return new Key(name)
}

function command(words) {
  const keys = words.flatMap((word, at) => (word instanceof Key ? [at] : []))
  const text = (word) => (word instanceof Key ? word.name : word)
  return { words: words.map((word) => Buffer.from(text(word) instanceof Uint8Array ? text(word) : String(text(word)))), keys }
}

/** Only the fields that a fence needs. */
function sectionOf({ token, mode, slot }) {
  return { token, mode, slot }
}

class RedisFence {
  #native

  constructor(native) {
    this.#native = native
  }

  static async connect(redis, { trustsNoEviction = false } = {}) {
    // Owned by the fence: when that is garbage, the connection is let go.
    const owner = {}
    const connection = connect(owner, ([name, ...words]) => redis.callBuffer(name.toString(), ...words))
    const native = await call((id) => bridge.redisFence(id, connection, trustsNoEviction))
    return Object.assign(new RedisFence(native), { owner })
  }

  async #pass(action, resource, section, commands) {
    const words = commands.map(command)
    const start = (id) => bridge.redisPass(id, this.#native, action, resource, sectionOf(section), words)
    return JSON.parse(await call(start))
  }

  async enter(resource, section) {
    await this.#pass('enter', resource, section, [])
  }

  async write(resource, section, commands) {
    return this.#pass('write', resource, section, commands)
  }

  async once(resource, section, commands) {
    return this.#pass('once', resource, section, commands)
  }
}

module.exports = { RedisFence, key }
