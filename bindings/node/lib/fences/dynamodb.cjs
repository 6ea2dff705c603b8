"use strict";

// The fence of DynamoDB, by a client of `@aws-sdk/client-dynamodb`: the marks are attributes of the guarded item, and
// the check is the condition of the request, which the Rust fence makes.

const { DynamoDbRequest } = require("../native.cjs");
const { native: checked } = require("../errors.cjs");

/** Bytes in the SDK's form as in JSON, and back. */
const toJson = (values) =>
  JSON.stringify(values, (name, value) => {
    if (value instanceof Uint8Array) return Buffer.from(value).toString("base64");
    // `Buffer` has a `toJSON`.
    if (value?.type === "Buffer" && Array.isArray(value.data)) return Buffer.from(value.data).toString("base64");
    return value;
  });
const fromJson = (json) =>
  JSON.parse(json, (name, value) => {
    if (name === "B" && typeof value === "string") return Buffer.from(value, "base64");
    if (name === "BS" && Array.isArray(value)) return value.map((one) => Buffer.from(one, "base64"));
    return value;
  });

class DynamoDbFence {
  #client;

  constructor(client) {
    this.#client = client;
  }

  async #send(request) {
    const sdk = require("@aws-sdk/client-dynamodb");
    const Command = request.operation === "PutItem" ? sdk.PutItemCommand : sdk.UpdateItemCommand;
    return this.#client.send(new Command(fromJson(request.body)));
  }

  async #pass(action, { table, key }, { token, mode, slot }, effect) {
    const made = () => new DynamoDbRequest(action, table, toJson(key), { token, mode, slot }, toJson(effect));
    let request = checked(made);
    for (;;) {
      try {
        return await this.#send(request);
      } catch (error) {
        if (error.name !== "ConditionalCheckFailedException") throw error;
        // The next request, at most once; or the refusal.
        request = checked(() => request.afterRefusal(error.Item && toJson(error.Item)));
      }
    }
  }

  async enter(resource, section) {
    const { Attributes } = await this.#pass("enter", resource, section, {});
    return Attributes;
  }

  async write(resource, section, effect) {
    await this.#pass("write", resource, section, effect);
  }

  async once(resource, section, effect) {
    await this.#pass("check_once", resource, section, effect);
  }
}

module.exports = { DynamoDbFence };
