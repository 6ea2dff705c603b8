//! The Python package on real lock services: the tests in the files beside this one, run by pytest on the
//! library as it was built with this test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use lockkeeper_fence::{RedisFence, RedisFenceError, Refused, Section, SqliteError, Token, sqlite};
use lockkeeper_rig::{DynamoDb, Postgres, Redis};
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
    std::os::unix::fs::symlink(native_module(), folder.join("_lockkeeper.abi3.so")).unwrap();
    root
}

/// The native module that was built with this test.
fn native_module() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().join("lib_lockkeeper.so");
    assert!(built.exists(), "{} was not built", built.display());
    built
}

fn foreign(set: &str) -> PathBuf {
    let libraries = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign").join(set);
    assert!(libraries.exists(), "{} is missing: `cargo xtask test` installs it", libraries.display());
    libraries
}

fn python(arguments: &[&str], variables: &[(&str, &str)]) {
    let package = package();
    let path = std::env::join_paths([package.path().to_owned(), foreign("pypi-python"), foreign("pypi-aws")])
        .unwrap();
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
    pytest_beside(&Redis::start(), file, variables);
}

/// Runs the tests of a file on our own service and a Redis.
fn pytest_beside(redis: &Redis, file: &str, variables: &[(&str, &str)]) {
    let service = Service::start();
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

/// Beside the Rust fences, on the same marks of the resource `beside`.
#[tokio::test]
async fn fences_of_stores() {
    let (redis, dynamodb) = (Redis::start(), DynamoDb::start(foreign("pypi-aws").parent().unwrap()));
    let client = redis::Client::open(redis.url()).unwrap();
    let fence = RedisFence::connect(client.get_multiplexed_async_connection().await.unwrap()).await.unwrap();
    let section = |token| Section::exclusive(Token::new(token).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fence.sqlite");
    let mut database = sqlite::rusqlite::Connection::open(&path).unwrap();
    sqlite::install(&database).unwrap();

    fence.enter("beside", section(7)).await.unwrap();
    sqlite::enter(&mut database, "beside", section(7)).unwrap();
    let (dynamodb, path) = (dynamodb.url(), path.to_str().unwrap());
    let variables = [("LOCKKEEPER_TEST_DYNAMODB", dynamodb.as_str()), ("LOCKKEEPER_TEST_SQLITE", path)];
    pytest_beside(&redis, "test_fence_stores.py", &variables);
    let expected = Refused::Stale { offered: Token::new(8).unwrap(), highest: Token::new(9).unwrap() };
    let error = fence.enter("beside", section(8)).await.unwrap_err();
    assert!(matches!(error, RedisFenceError::Refused(refused) if refused == expected), "{error}");
    let error = sqlite::enter(&mut database, "beside", section(8)).unwrap_err();
    assert!(matches!(error, SqliteError::Refused(refused) if refused == expected), "{error}");
}

#[test]
fn examples() {
    pytest("test_examples.py", &[]);
}

#[test]
fn types() {
    let path = ("MYPYPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/python"));
    // Other libraries are not looked at: it would take minutes.
    let options = ["-m", "mypy", "--strict", "--ignore-missing-imports", "--allow-subclassing-any"];
    let options =
        [&options[..], &["--allow-untyped-decorators", "--no-site-packages", "--cache-dir=/dev/null"]]
            .concat();
    python(&[&options[..], &["../python/lockkeeper", "../examples", "driver.py"]].concat(), &[path]);
    python(&["-m", "mypy.stubtest", "--ignore-disjoint-bases", "lockkeeper._lockkeeper"], &[path]);
}

#[track_caller]
fn ran(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The wheel as `cargo xtask dist` makes it, but of the native module that was built with this test, in an
/// empty environment. maturin builds by cargo: by one here that only says where the module is.
#[test]
fn installed_wheel_takes_a_lock() {
    let here = env!("CARGO_MANIFEST_DIR");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [cargo, module, venv] = ["cargo", "lib_lockkeeper.so", "venv"].map(|name| folder.path().join(name));
    // The symbols of a debug build take long to compress.
    ran(Command::new("strip").arg("-o").arg(&module).arg(native_module()));
    let built = format!(
        r#"{{"reason": "compiler-artifact", "package_id": "path+file://{here}#lockkeeper-python@{version}",
        "manifest_path": "{here}/Cargo.toml", "filenames": ["{module}"], "executable": null, "fresh": true, "features": [],
        "target": {{"kind": ["cdylib"], "crate_types": ["cdylib"], "name": "_lockkeeper", "src_path": "{here}/src/lib.rs",
        "edition": "2024"}}, "profile": {{"opt_level": "0", "debug_assertions": true, "overflow_checks": true, "test": false}}}}"#,
        version = env!("CARGO_PKG_VERSION"),
        module = module.display(),
    );
    let script = format!("#!/bin/sh\necho '{}'\n", built.replace('\n', ""));
    std::fs::write(&cargo, script).unwrap();
    std::fs::set_permissions(&cargo, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    ran(Command::new(foreign("pypi-maturin").join("bin/maturin"))
        .args(["build", "--offline", "--compatibility", "linux", "--manifest-path"])
        .args([&format!("{here}/Cargo.toml"), "--out"])
        .arg(folder.path())
        .env("CARGO", &cargo));
    let mut wheels = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let wheel = wheels.find(|file| file.extension().is_some_and(|it| it == "whl")).unwrap();

    ran(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv));
    ran(Command::new("python3")
        .args(["-m", "pip", "--python"])
        .arg(venv.join("bin/python"))
        .args(["install", "--quiet", "--no-index"])
        .arg(wheel));
    let service = Service::start();
    let program = "
import importlib.metadata, sys, lockkeeper
package = importlib.metadata.distribution('lockkeeper')
assert package.version == lockkeeper.__version__
assert any(file.name == 'py.typed' for file in package.files)
with lockkeeper.connect(sys.argv[1]).fenced().mutex('first') as guard:
    print(guard.token)
";
    let address = format!("lockkeeper://{}", service.running.address());
    let token = ran(Command::new(venv.join("bin/python")).args(["-I", "-c", program, &address]));
    assert!(token.trim().parse::<u64>().unwrap() > 0);
}

#[test]
fn drivers() {
    pytest("test_driver.py", &[]);
}
