#![no_main]

use lockkeeper_server::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: lockkeeper_corpus::store("server", fuzzing::seeds()),
    |bytes: &[u8]| fuzzing::run(bytes)
);
