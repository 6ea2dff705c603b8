// A route handler (of Next.js and other frameworks with `Request` and `Response`): a customer's order is placed once,
// however often the button is pressed, and on however many servers.

import { AcquireTimeout } from "lockkeeper";

/** @typedef {{ find(id: string): Promise<object | null>, place(id: string, token: number, signal: AbortSignal): Promise<object> }} Orders */

/**
 * @param {import('lockkeeper').FencedLocks} locks one client for all requests of a process
 * @param {Orders} orders
 */
export function handlers(locks, orders) {
  return {
    /** @param {Request} request */
    async POST(request) {
      const { id } = /** @type {{ id: string }} */ (await request.json());
      try {
        const order = await locks
          .mutex(`orders/${id}`, { ttl: 10_000, wait: 2_000 })
          .run(async ({ token, signal }) => (await orders.find(id)) ?? (await orders.place(id, token, signal)), {
            signal: request.signal,
          });
        return Response.json(order);
      } catch (error) {
        if (!(error instanceof AcquireTimeout)) throw error;
        return Response.json({ error: "this order is being placed" }, { status: 409, headers: { "retry-after": "2" } });
      }
    },
  };
}
