//! A disk that fails or is slow: the shim of `shim.c`, compiled here, and its numbers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use crate::server::Server;

/// The numbers of `shim.c`, by their place.
#[derive(Clone, Copy)]
pub(crate) enum Number {
    DelayMs = 0,
    FailIn = 1,
    Error = 2,
    Syncs = 3,
    Failed = 4,
}

/// The shim before a server's syncs.
pub(crate) struct Shim {
    control: File,
}

impl Shim {
    /// Compiles it; the server's next starts have it.
    pub(crate) fn before(server: &mut Server) -> Self {
        let library = server.beside("shim.so");
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/faults/shim.c");
        let compiled = Command::new("cc")
            .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(source)
            .arg("-ldl")
            .output()
            .expect("this test needs a C compiler, `cc`: install gcc and libc6-dev");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let path = server.beside("shim.control");
        let control = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        control.set_len(20).unwrap();
        server.environment(&[("LD_PRELOAD", &library), ("LK_FAULTS_SHIM", &path)]);
        Self { control }
    }

    pub(crate) fn get(&self, number: Number) -> i32 {
        let mut bytes = [0; 4];
        self.control.read_exact_at(&mut bytes, number as u64 * 4).unwrap();
        i32::from_ne_bytes(bytes)
    }

    pub(crate) fn set(&self, number: Number, value: i32) {
        self.control.write_all_at(&value.to_ne_bytes(), number as u64 * 4).unwrap();
    }
}
