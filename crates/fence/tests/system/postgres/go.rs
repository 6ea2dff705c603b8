//! The fence's Go package (`clients/go/fence`), on the marks of this one.

use std::path::Path;
use std::process::Command;

use lockkeeper_fence::postgres::tokio_postgres as fence;

use crate::postgres::{connect, exclusive, server};

/// The package's path below `src` of a GOPATH.
const MODULE: &str = "src/github.com/lockkeeper/lockkeeper/clients/go";

/// Compiled as Debian's packages are, without modules, since the driver of PostgreSQL is one of them.
#[tokio::test]
async fn go_package_checks_the_same_marks() {
    let server = server();
    fence::enter(&connect(&server.url()).await, "rust/orders", exclusive(42)).await.expect("never seen");
    let folder = tempfile::tempdir().unwrap();
    let module = folder.path().join(MODULE);
    std::fs::create_dir_all(module.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/go"), &module)
        .unwrap();
    let tested = Command::new("go")
        .args(["test", "-tags", "postgres", "./fence"])
        .current_dir(&module)
        .env("PWD", &module)
        .env("GO111MODULE", "off")
        .env("GOPATH", format!("{}:/usr/share/gocode", folder.path().display()))
        .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"))
        .env("FENCE_POSTGRES", format!("{}?sslmode=disable", server.url()))
        .output()
        .expect("`go` runs: install golang-go and golang-github-lib-pq-dev");
    let said = [tested.stdout, tested.stderr].concat();
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&said));
    let marks = fence::marks(&connect(&server.url()).await, "go/orders").await.expect("readable");
    assert_eq!(marks.base.any.map(|it| it.get()), Some(9));
}
