//! The drivers of the clients in other languages, built or put together from the source tree.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Command lines of all drivers. `place` is an empty folder for what is built.
pub(crate) fn drivers(place: &Path) -> Vec<String> {
    let all: [fn(&Path) -> Vec<String>; 4] = [python, node, go, java];
    all.into_iter().flat_map(|build| build(place)).collect()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// A native module, as it was built with the tests of its package.
fn module(file: &str) -> PathBuf {
    let built = std::env::current_exe().unwrap().with_file_name(file);
    assert!(built.exists(), "{} was not built: `cargo xtask test` does", built.display());
    built
}

fn run(command: &mut Command) {
    let shown = format!("{command:?}");
    let status =
        command.status().unwrap_or_else(|error| panic!("{shown}: {error}; `cargo xtask test` installs it"));
    assert!(status.success(), "{shown}: {status}");
}

/// Links to all files of `from`.
fn link_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        symlink(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// The APIs for threads and for asyncio.
fn python(place: &Path) -> Vec<String> {
    let binding = repository().join("bindings/python");
    let package = place.join("python/lockkeeper");
    link_all(&binding.join("python/lockkeeper"), &package);
    symlink(module("lib_lockkeeper.so"), package.join("_lockkeeper.abi3.so")).unwrap();
    let driver = binding.join("tests/driver.py");
    let command = format!("PYTHONPATH={} python3 {}", place.join("python").display(), driver.display());
    vec![command.clone(), format!("{command} --asyncio")]
}

fn node(place: &Path) -> Vec<String> {
    let binding = repository().join("bindings/node");
    let modules = place.join("node/node_modules/lockkeeper");
    fs::create_dir_all(modules.join("lib")).unwrap();
    // Node resolves symlinks, and would search the libraries beside the files that they name.
    for file in fs::read_dir(binding.join("lib")).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_file() {
            fs::copy(file.path(), modules.join("lib").join(file.file_name())).unwrap();
        }
    }
    fs::copy(binding.join("package.json"), modules.join("package.json")).unwrap();
    let arch = if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" };
    let native = format!("lockkeeper.{}-{arch}.node", std::env::consts::OS);
    fs::copy(module("liblockkeeper_node.so"), modules.join("lib").join(native)).unwrap();
    let driver = place.join("node/driver.mjs");
    fs::copy(binding.join("tests/driver.mjs"), &driver).unwrap();
    vec![format!("node {}", driver.display())]
}

fn go(place: &Path) -> Vec<String> {
    let built = place.join("go-driver");
    let mut go = Command::new("go");
    run(go
        .args(["build", "-o"])
        .arg(&built)
        .arg("./cmd/driver")
        .current_dir(repository().join("clients/go")));
    vec![built.display().to_string()]
}

fn java(place: &Path) -> Vec<String> {
    let classes = place.join("java");
    let sources = repository().join("clients/java/src/main/java/io/github/lockkeeper");
    let sources = fs::read_dir(sources).unwrap().map(|file| file.unwrap().path());
    run(Command::new("javac").args(["--release", "17", "-d"]).arg(&classes).args(sources));
    // Quick to start, for a process that lives for seconds.
    let options = "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC";
    vec![format!("java {options} -cp {} io.github.lockkeeper.Driver", classes.display())]
}
