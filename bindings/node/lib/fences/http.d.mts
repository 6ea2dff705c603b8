export * from "./http.cjs";
