import core from "./ioredis.cjs";

export const { RedisFence, key } = core;
