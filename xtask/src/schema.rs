//! Generates the Rust code of the protobuf schemas, which is kept in the repository, so that neither users of
//! the crates nor the tests build a generator. Compiles the schemas with protox, in pure Rust: protoc need
//! not be installed.
//!
//! The generator is behind the feature `generate`, which `cargo xtask generate` turns on by itself. A
//! checksum beside the generated code covers schemas and code; a test of this module compares it.
#![cfg_attr(
    not(any(test, feature = "generate")),
    allow(dead_code, reason = "this build starts the other one")
)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;

/// A set of schemas: their folder, and that of their code.
struct Schemas {
    sources: &'static str,
    code: &'static str,
    #[cfg(feature = "generate")]
    write: fn(&Path, &Path) -> Result<(), Box<dyn std::error::Error>>,
}

const ALL: [Schemas; 2] = [
    Schemas {
        sources: "crates/wire/proto",
        code: "crates/wire/src/generated",
        #[cfg(feature = "generate")]
        write: generator::wire,
    },
    Schemas {
        sources: "crates/backends/etcd/proto",
        code: "crates/backends/etcd/src/generated",
        #[cfg(feature = "generate")]
        write: generator::etcd,
    },
];

/// The file with the checksum.
const CHECKSUM: &str = "checksum";

/// Starts this tool again with its feature `generate`, then writes the text of the public API.
#[cfg(not(feature = "generate"))]
pub(crate) fn generate() -> TaskResult {
    use crate::process::{cargo, run};

    run(cargo().args(["run", "--quiet", "--package", "xtask", "--features", "generate", "--", "generate"]))?;
    crate::api::write()
}

/// Writes the code and its checksum.
#[cfg(feature = "generate")]
pub(crate) fn generate() -> TaskResult {
    for schemas in ALL {
        let (sources, code) = (Path::new(schemas.sources), Path::new(schemas.code));
        (schemas.write)(sources, code).map_err(|error| format!("{}: {error}", sources.display()))?;
        let file = code.join(CHECKSUM);
        fs::write(&file, checksum(&schemas)?).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

/// CRC-32 of the names and contents of schemas and code, in the order of the names.
fn checksum(schemas: &Schemas) -> TaskResult<String> {
    let mut files = Vec::new();
    for folder in [schemas.sources, schemas.code] {
        collect(Path::new(folder), &mut files).map_err(|error| format!("{folder}: {error}"))?;
    }
    files.retain(|file| !file.ends_with(CHECKSUM));
    files.sort();
    let mut hash = crc32fast::Hasher::new();
    for file in files {
        hash.update(file.to_string_lossy().as_bytes());
        hash.update(&fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    Ok(format!("{:08x}\n", hash.finalize()))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

#[cfg(feature = "generate")]
mod generator {
    use std::error::Error;
    use std::path::Path;

    use prost::Message;

    const SCHEMAS: [&str; 4] = [
        "lockkeeper/v1/session.proto",
        "lockkeeper/v1/lockkeeper.proto",
        "lockkeeper/store/v1/store.proto",
        "lockkeeper/peer/v1/peer.proto",
    ];

    /// The client's part of etcd's interface.
    pub(super) fn etcd(sources: &Path, code: &Path) -> Result<(), Box<dyn Error>> {
        let files = protox::compile(["etcd.proto"], [sources])?;
        tonic_prost_build::configure()
            .out_dir(code)
            .build_server(false)
            .build_transport(false)
            .compile_fds(files)?;
        Ok(())
    }

    /// Our own formats: of the interface, of the log, between nodes.
    pub(super) fn wire(sources: &Path, code: &Path) -> Result<(), Box<dyn Error>> {
        const GRPC: &str = "#[cfg(feature = \"grpc\")]";
        let files = protox::compile(SCHEMAS, [sources])?;
        // For gRPC reflection. It covers the public interface only, not the formats on disk and between
        // nodes.
        let mut public = files.clone();
        public.file.retain(|file| file.package() == "lockkeeper.v1");
        std::fs::write(code.join("lockkeeper.v1.descriptors.bin"), public.encode_to_vec())?;
        tonic_prost_build::configure()
            .out_dir(code)
            .client_mod_attribute(".", GRPC)
            .server_mod_attribute(".", GRPC)
            .build_transport(false)
            // As `Bytes`, an entry's data are shared instead of copied.
            .bytes(".lockkeeper.store.v1.Entry.data")
            // `crate::secret` implements it, without the secrets.
            .skip_debug([
                ".lockkeeper.v1.OpenSession",
                ".lockkeeper.v1.AttachSession",
                ".lockkeeper.v1.SessionCallRequest",
            ])
            // The crate's own type counts the items before it decodes them.
            .extern_path(".lockkeeper.v1.ClientFrame", "crate::frame::ClientFrame")
            .compile_fds(files)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::enter_workspace;

    #[test]
    fn generated_code_is_that_of_the_schemas() {
        enter_workspace().expect("the workspace is there");
        for schemas in ALL {
            let kept = fs::read_to_string(Path::new(schemas.code).join(CHECKSUM)).unwrap_or_default();
            assert_eq!(
                kept,
                checksum(&schemas).expect("our own files"),
                "{} or {} was changed: run `cargo xtask generate`",
                schemas.sources,
                schemas.code
            );
        }
    }
}
