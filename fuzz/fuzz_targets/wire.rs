#![no_main]

use lockkeeper_wire::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: lockkeeper_corpus::store("wire", fuzzing::seeds()),
    |bytes: &[u8]| fuzzing::run(bytes)
);
