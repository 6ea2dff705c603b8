#![no_main]

use lockkeeper_replica::storage::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: lockkeeper_corpus::store("storage", fuzzing::seeds()),
    |bytes: &[u8]| fuzzing::run(bytes)
);
