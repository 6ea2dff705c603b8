export * from './pg.cjs'
