//! Keeps the native module loaded: threads of it may outlive the last environment that has loaded it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
