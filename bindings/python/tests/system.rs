//! The Python package on real lock services: the tests in the files beside this one, run by pytest on the
//! library as it was built with this test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use lockkeeper_rig::{Postgres, Redis};
use lockkeeper_server::{Running, ServerOptions};

/// Our own service, in this process.
struct Service {
    running: Running,
    _data: tempfile::TempDir,
}

impl Service {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut options = ServerOptions::new(data.path());
        options.listen = "127.0.0.1:0".to_owned();
        let (ready, running) = mpsc::channel();
        std::thread::spawn(move || lockkeeper_server::run(options, |running| ready.send(running).unwrap()));
        Self { running: running.recv().unwrap(), _data: data }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.running.stop();
    }
}

/// A folder with the package and the native module that was built with this test.
fn package() -> tempfile::TempDir {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/lockkeeper");
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = root.path().join("lockkeeper");
    std::fs::create_dir(&folder).unwrap();
    for file in std::fs::read_dir(here).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        } else {
            std::os::unix::fs::symlink(file.path(), folder.join(file.file_name())).unwrap();
        }
    }
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().join("lib_lockkeeper.so");
    std::os::unix::fs::symlink(&built, folder.join("_lockkeeper.abi3.so")).unwrap();
    assert!(built.exists(), "{} was not built", built.display());
    root
}

fn foreign() -> PathBuf {
    let libraries = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign/pypi-python");
    assert!(libraries.exists(), "{} is missing: `cargo xtask test` installs it", libraries.display());
    libraries
}

fn python(arguments: &[&str], variables: &[(&str, &str)]) {
    let package = package();
    let path = std::env::join_paths([package.path().to_owned(), foreign()]).unwrap();
    let status = Command::new("python3")
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"))
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(variables.iter().copied())
        .status()
        .expect("python3 is missing: `cargo xtask test` installs it");
    assert!(status.success(), "python3 {arguments:?}: {status}");
}

fn pytest(file: &str, variables: &[(&str, &str)]) {
    let (service, redis) = (Service::start(), Redis::start());
    let urls = format!(
        r#"{{"lockkeeper": "lockkeeper://{}", "redis": "{}?fencing=counter&force=true"}}"#,
        service.running.address(),
        redis.url()
    );
    let options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=90"];
    let variables = [variables, &[("LOCKKEEPER_TEST_URLS", urls.as_str())]].concat();
    python(&[&options[..], &["--durations=3", file]].concat(), &variables);
}

#[test]
fn threads() {
    pytest("test_threads.py", &[]);
}

#[test]
fn asyncio() {
    pytest("test_asyncio.py", &[]);
}

#[test]
fn processes() {
    pytest("test_processes.py", &[]);
}

#[test]
fn fences() {
    let postgres = Postgres::start();
    pytest("test_fences.py", &[("LOCKKEEPER_TEST_POSTGRES", &postgres.url())]);
}
