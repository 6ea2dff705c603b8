/**
 * The HTTP fence: middleware that checks the header `Fencing-Token` before a handler runs.
 *
 * ```ts
 * app.use(express('/var/lib/shop/fence.redb'))
 * fastify.addHook('preHandler', fastifyFence('/var/lib/shop/fence.redb'))
 * ```
 *
 * A `GET` with a token enters; other methods need a token, and are checked. Refusals are `application/problem+json`.
 * The marks are in one file, which one process opens: all requests for a resource pass through it.
 *
 * A write counts as running until its handler ends the response, also if the client has gone; a read, until it is
 * answered.
 */
import { IncomingMessage, ServerResponse } from "node:http";

export interface FenceOptions<Request = any> {
  /** How long a request waits for those with lower tokens, in milliseconds, before it gets 503. Default: 5,000. */
  wait?: number;
  /** Whether a request needs a token. Default: all methods but `GET`, `HEAD` and `OPTIONS`. */
  needsToken?: (request: Request) => boolean;
  /** The name of a request's resource. Default: `Fencing-Resource`, or the path. */
  resource?: (request: Request) => string;
}

/** Middleware for Express, Connect, and others that call `(request, response, next)`. */
export function express(
  path: string,
  options?: FenceOptions,
): (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => Promise<void>;

/** A `preHandler` hook for Fastify. */
export function fastify(path: string, options?: FenceOptions): (request: any, reply: any) => Promise<unknown>;
