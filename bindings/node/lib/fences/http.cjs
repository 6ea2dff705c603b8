"use strict";

// The HTTP fence: middleware that checks `Fencing-Token` before a handler runs. The Rust fence decides, and keeps the
// marks in a file.

const { HttpFence } = require("../native.cjs");
const { bridge, call, checked } = require("../bridge.cjs");
const { NotFenced } = require("../errors.cjs");

/** Checks a request. Returns a pass, `null` (no token, and none needed), or the response. */
async function pass(fence, request, { needsToken, resource }) {
  const headers = Object.entries(request.headers).flatMap(([name, values]) =>
    [values].flat().map((one) => [name, one]),
  );
  const { method, originalUrl = request.url } = request;
  const named = resource?.(request);
  // Without one, the client could choose.
  if (resource && typeof named !== "string") {
    throw new NotFenced(`\`resource\` has returned ${named}; it must name the resource of each request`);
  }
  const start = (id) => bridge.httpPass(id, fence, method, originalUrl, headers, needsToken?.(request), named);
  const answer = await call(start);
  return typeof answer === "string" ? { refusal: JSON.parse(answer) } : { pass: answer };
}

/**
 * Ends a pass when the handler ends its response. A write not when the connection closes: a handler whose client has
 * gone may still write. A read changes nothing, and ends as soon as it is answered: a slow client of it does not keep
 * the next holder waiting.
 */
function endWith(pass, response) {
  if (pass === null) return;
  const isRead = pass.action === "enter";
  for (const name of isRead ? ["writeHead", "end"] : ["end"]) {
    const method = response[name];
    response[name] = function (...rest) {
      pass.end();
      return method.apply(this, rest);
    };
  }
  if (isRead) response.once("close", () => pass.end());
}

/** Middleware for Express, Connect, and other `(request, response, next)`. */
function express(path, options = {}) {
  const fence = checked(() => new HttpFence(path, options.wait));
  return async (request, response, next) => {
    try {
      const { refusal, pass: passed } = await pass(fence, request, options);
      if (refusal) {
        response.writeHead(refusal.status, refusal.headers).end(refusal.body);
        return;
      }
      endWith(passed, response);
      next();
    } catch (error) {
      next(error);
    }
  };
}

/** A hook for Fastify's `preHandler`. */
function fastify(path, options = {}) {
  const fence = checked(() => new HttpFence(path, options.wait));
  return async (request, reply) => {
    const { refusal, pass: passed } = await pass(fence, request.raw, {
      needsToken: options.needsToken && (() => options.needsToken(request)),
      resource: options.resource && (() => options.resource(request)),
    });
    if (refusal) return reply.code(refusal.status).headers(refusal.headers).send(refusal.body);
    endWith(passed, reply.raw);
    return undefined;
  };
}

module.exports = { express, fastify };
