//! Writes `src/generated` from the schema in `proto`: `cargo xtask generate`. The result is kept in the repository, so that
//! users of the crate build no generator. Compiles the schema with protox, in pure Rust: protoc need not be installed.

use std::error::Error;
use std::path::Path;

use prost::Message;

const SCHEMAS: [&str; 4] = [
    "lockkeeper/v1/session.proto",
    "lockkeeper/v1/lockkeeper.proto",
    "lockkeeper/store/v1/store.proto",
    "lockkeeper/peer/v1/peer.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    write_to(&root.join("src/generated"))?;
    write_etcd_to(&root.join("../client/src/backends/etcd/generated"))
}

/// Writes the client's part of etcd's interface into an existing directory.
pub(crate) fn write_etcd_to(directory: &Path) -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/proto");
    let files = protox::compile(["etcd.proto"], [proto])?;
    tonic_prost_build::configure()
        .out_dir(directory)
        .build_server(false)
        .build_transport(false)
        .compile_fds(files)?;
    Ok(())
}

/// Writes the generated files into an existing directory.
pub(crate) fn write_to(directory: &Path) -> Result<(), Box<dyn Error>> {
    const GRPC: &str = "#[cfg(feature = \"grpc\")]";
    let files = protox::compile(SCHEMAS, [Path::new(env!("CARGO_MANIFEST_DIR")).join("proto")])?;
    // For gRPC reflection. It covers the public interface only, not the formats on disk and between nodes.
    let mut public = files.clone();
    public.file.retain(|file| file.package() == "lockkeeper.v1");
    std::fs::write(directory.join("lockkeeper.v1.descriptors.bin"), public.encode_to_vec())?;
    tonic_prost_build::configure()
        .out_dir(directory)
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
