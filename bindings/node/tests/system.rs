//! The npm package on real lock services: the tests in the files beside this one, run by node on the library
//! as it was built with this test.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

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

    fn url(&self) -> String {
        format!("lockkeeper://{}", self.running.address())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.running.stop();
    }
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Libraries of npm and PyPI, which `cargo xtask test` installs.
fn foreign() -> PathBuf {
    let foreign = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign");
    let libraries = foreign.join("npm-node");
    assert!(libraries.exists(), "{} is missing: `cargo xtask test` installs it", libraries.display());
    foreign
}

/// The native module that was built with this test.
fn module() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().join("liblockkeeper_node.so");
    assert!(built.exists(), "{} was not built", built.display());
    built
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let to = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            copy(&file.path(), &to);
        } else {
            fs::copy(file.path(), to).unwrap();
        }
    }
}

/// A folder that has the package, with `module` put into its place, and the libraries in its node_modules.
fn project() -> tempfile::TempDir {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let modules = root.path().join("node_modules");
    fs::create_dir(&modules).unwrap();
    for library in fs::read_dir(foreign().join("npm-node/node_modules")).unwrap() {
        let library = library.unwrap();
        symlink(library.path(), modules.join(library.file_name())).unwrap();
    }
    let package = modules.join("lockkeeper");
    copy(&here().join("lib"), &package.join("lib"));
    fs::copy(here().join("package.json"), package.join("package.json")).unwrap();
    // No symlink: node follows it, and asks the name that it finds for the kind of file.
    fs::hard_link(module(), package.join("lib").join(binary())).unwrap();
    copy(&here().join("tests"), &root.path().join("tests"));
    copy(&here().join("examples"), &root.path().join("examples"));
    root
}

/// The name of the native module in the package.
fn binary() -> String {
    let arch = if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" };
    format!("lockkeeper.{}-{arch}.node", std::env::consts::OS)
}

fn run(command: &mut Command) {
    let shown = format!("{command:?}");
    let status = command.status().expect("node is missing: `cargo xtask test` installs it");
    assert!(status.success(), "{shown}: {status}");
}

/// Runs a file of tests.
fn test(file: &str, variables: &[(&str, String)]) {
    let project = project();
    run(Command::new("node")
        .args(["--expose-gc", "--test", "--test-reporter=spec", "--test-timeout=120000"])
        .arg(format!("tests/{file}"))
        .current_dir(project.path())
        .envs(variables.iter().cloned()));
}

/// Starts our own service and Redis, and runs a file of tests on them.
fn test_on_services(file: &str) {
    let (service, redis) = (Service::start(), Redis::start());
    let redis = format!("{}?fencing=counter&force=true", redis.url());
    test(file, &[("LOCKKEEPER_URL", service.url()), ("LOCKKEEPER_REDIS_URL", redis)]);
}

#[test]
fn locks() {
    test_on_services("locks.mjs");
}

#[test]
fn processes() {
    test_on_services("processes.mjs");
}

#[test]
fn examples() {
    test_on_services("examples.mjs");
}

#[test]
fn fences() {
    let (service, redis, postgres) = (Service::start(), Redis::start(), Postgres::start());
    let dynamodb = DynamoDb::start(&foreign());
    let marks = tempfile::tempdir().unwrap();
    test(
        "fences.mjs",
        &[
            ("LOCKKEEPER_URL", service.url()),
            ("REDIS_URL", redis.url()),
            ("POSTGRES_URL", postgres.url()),
            ("DYNAMODB_URL", format!("http://127.0.0.1:{}", dynamodb.port())),
            ("DYNAMODB_TABLE", lockkeeper_rig::dynamodb::TABLE.to_owned()),
            ("MARKS", marks.path().to_string_lossy().into_owned()),
        ],
    );
    rust_fences_have_the_same_marks(&redis, &postgres);
}

/// `fences.mjs` has entered `both` with token 7.
fn rust_fences_have_the_same_marks(redis: &Redis, postgres: &Postgres) {
    use lockkeeper_fence::{RedisFence, RedisFenceError, Refused, Section, Token};

    let stale = Section::exclusive(Token::new(6).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connection = redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await;
        let fence = RedisFence::connect(connection.unwrap()).await.unwrap();
        let refused = fence.enter("both", stale).await;
        assert!(matches!(refused, Err(RedisFenceError::Refused(Refused::Stale { .. }))), "{refused:?}");
    });
    let refused =
        postgres.try_psql("SELECT lockkeeper_fence.enter('both', 'exclusive', NULL, 6)").unwrap_err();
    assert!(refused.contains("token 6 is stale: token 7 has been at 'both'"), "{refused}");
}

#[test]
fn types() {
    let project = project();
    run(Command::new("node")
        .args(["node_modules/typescript/bin/tsc", "--project", "tests/tsconfig.json"])
        .current_dir(project.path()));
}

/// What `cargo xtask dist` packs, installed in an empty folder.
#[test]
fn installed_package_takes_a_lock() {
    let (service, root) = (Service::start(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let empty = root.path().join("empty");
    run(Command::new(here().join("pack.sh")).arg(module()).arg(root.path()));
    let packed = root.path().join(format!("lockkeeper-{}.tgz", env!("CARGO_PKG_VERSION")));
    assert!(packed.exists(), "package.json has another version than the workspace");
    fs::create_dir(&empty).unwrap();
    let install = ["install", "--silent", "--offline", "--no-audit", "--no-fund"];
    run(Command::new("npm").args(install).arg(&packed).current_dir(&empty));
    let take = "const { connect } = require('lockkeeper'); \
        connect(process.argv[1]).then((locks) => locks.fenced().mutex('installed').run(({ token }) => token > 0 || process.exit(1)))";
    run(Command::new("node").args(["-e", take, &service.url()]).current_dir(&empty));
}
