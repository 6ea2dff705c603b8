//! Compiles the schema with protox, in pure Rust, so protoc need not be installed.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const SCHEMAS: [&str; 4] = [
    "lockkeeper/v1/session.proto",
    "lockkeeper/v1/lockkeeper.proto",
    "lockkeeper/store/v1/store.proto",
    "lockkeeper/peer/v1/peer.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(SCHEMAS, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // For gRPC reflection. It covers the public interface only, not the formats on disk and between nodes.
    let mut public = files.clone();
    public.file.retain(|file| file.package() == "lockkeeper.v1");
    std::fs::write(out.join("lockkeeper.v1.descriptors.bin"), public.encode_to_vec())?;
    let grpc = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure()
        .build_client(grpc)
        .build_transport(false)
        // As `Bytes`, an entry's data are shared instead of copied.
        .bytes(".lockkeeper.store.v1.Entry.data")
        .build_server(grpc)
        // The crate's own type counts the items before it decodes them.
        .extern_path(".lockkeeper.v1.ClientFrame", "crate::frame::ClientFrame")
        .compile_fds(files)?;
    Ok(())
}
