import core from "./dynamodb.cjs";

export const { DynamoDbFence } = core;
