export * from './ioredis.cjs'
