export * from './http.cjs'
