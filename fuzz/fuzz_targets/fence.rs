#![no_main]

use lockkeeper_fence::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: lockkeeper_corpus::store("fence", fuzzing::seeds()),
    |bytes: &[u8]| fuzzing::run(bytes)
);
