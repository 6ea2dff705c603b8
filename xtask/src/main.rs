//! The project's own tool; all of it is in the library, as are its tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    xtask::main()
}
