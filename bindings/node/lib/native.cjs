"use strict";

const name = `lockkeeper.${process.platform}-${process.arch}.node`;
try {
  module.exports = require(`./${name}`);
} catch (cause) {
  const missing = cause.code === "MODULE_NOT_FOUND";
  const advice = missing
    ? "this package has none for this platform; build it: `cargo build -p lockkeeper-node --release` in the source " +
      `tree, and copy target/release/liblockkeeper_node.so to lib/${name}`
    : cause.message;
  throw new Error(`the native module ${name} can't be loaded: ${advice}`, { cause });
}
