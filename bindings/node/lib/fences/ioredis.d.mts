export * from "./ioredis.cjs";
