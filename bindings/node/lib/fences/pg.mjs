import core from "./pg.cjs";

export const { enter, grantsSql, once, schemaSql, write } = core;
