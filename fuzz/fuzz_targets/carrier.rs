#![no_main]

use lockkeeper::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: lockkeeper_corpus::store("carrier", fuzzing::carrier_seeds()),
    |bytes: &[u8]| fuzzing::carrier(bytes)
);
