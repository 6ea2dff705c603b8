#![no_main]

use lockkeeper_core::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: lockkeeper_corpus::store("core", fuzzing::seeds()),
    |bytes: &[u8]| fuzzing::run(bytes)
);
