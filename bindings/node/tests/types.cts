// Compiled by `tsc --strict`, not run.

import lockkeeper = require("lockkeeper");
import http = require("lockkeeper/fences/http");

export const locks: Promise<lockkeeper.Locks> = lockkeeper.connect("memory:");
export const middleware = http.express("fence.redb", { needsToken: ({ method }) => method !== "GET" });
