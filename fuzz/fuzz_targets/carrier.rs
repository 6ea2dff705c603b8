#![no_main]

use lockkeeper::fuzzing::carrier;

libfuzzer_sys::fuzz_target!(
    init: lockkeeper_corpus::store("carrier", carrier::seeds()),
    |bytes: &[u8]| carrier::run(bytes)
);
