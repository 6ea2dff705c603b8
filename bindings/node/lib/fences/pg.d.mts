export * from "./pg.cjs";
