#![no_main]

use lockkeeper_gate::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: lockkeeper_corpus::store("gate", fuzzing::seeds()),
    |bytes: &[u8]| fuzzing::run(bytes)
);
