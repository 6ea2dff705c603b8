//! The generated code in the repository is that of the schema.

#[path = "../examples/generate.rs"]
#[allow(dead_code, missing_docs, reason = "its `main` is not called here")]
mod generate;

use std::collections::BTreeMap;
use std::path::Path;

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    std::fs::read_dir(directory).unwrap().map(read).collect()
}

#[track_caller]
fn are_the_same(fresh: &Path, kept: &Path) {
    let (fresh, kept) = (files(fresh), files(kept));
    assert_eq!(fresh.keys().collect::<Vec<_>>(), kept.keys().collect::<Vec<_>>());
    for (name, bytes) in fresh {
        assert!(kept[&name] == bytes, "{name} is out of date: run `cargo xtask generate`");
    }
}

#[test]
fn generated_code_is_that_of_the_schema() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fresh = tempfile::tempdir().unwrap();
    generate::write_to(fresh.path()).unwrap();
    are_the_same(fresh.path(), &root.join("src/generated"));
    let fresh = tempfile::tempdir().unwrap();
    generate::write_etcd_to(fresh.path()).unwrap();
    are_the_same(fresh.path(), &root.join("../client/src/backends/etcd/generated"));
}
