#![no_main]

use lockkeeper::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: lockkeeper_corpus::store("client", fuzzing::seeds()),
    |bytes: &[u8]| fuzzing::run(bytes)
);
