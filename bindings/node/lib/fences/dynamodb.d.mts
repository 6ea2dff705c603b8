export * from './dynamodb.cjs'
