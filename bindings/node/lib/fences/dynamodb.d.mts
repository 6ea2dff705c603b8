export * from "./dynamodb.cjs";
