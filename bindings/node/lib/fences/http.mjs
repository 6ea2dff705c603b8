import core from "./http.cjs";

export const { express, fastify } = core;
