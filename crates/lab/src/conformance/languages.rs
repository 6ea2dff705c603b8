//! The drivers of our clients in other languages, built or put together from the source tree.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A client that has a driver in the source tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    /// The API for threads.
    Python,
    /// The API for asyncio.
    Asyncio,
    /// The package for Node.js.
    Node,
    /// The client in Go.
    Go,
    /// The client in Java.
    Java,
}

impl Language {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Python, Self::Asyncio, Self::Node, Self::Go, Self::Java];

    /// As in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Asyncio => "asyncio",
            Self::Node => "node",
            Self::Go => "go",
            Self::Java => "java",
        }
    }

    /// Builds its driver in `place`, and returns the command line. `modules` is the folder of the native
    /// modules that cargo has built for Python and Node.js.
    ///
    /// # Errors
    /// A compiler or a module is missing, or the compiler fails.
    pub fn driver(self, place: &Path, modules: &Path) -> io::Result<String> {
        match self {
            Self::Python => python(place, modules),
            Self::Asyncio => Ok(format!("{} --asyncio", python(place, modules)?)),
            Self::Node => node(place, modules),
            Self::Go => go(place),
            Self::Java => java(place),
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/")).to_owned()
}

fn module(modules: &Path, file: &str) -> io::Result<PathBuf> {
    let built = modules.join(file);
    match built.exists() {
        true => Ok(built),
        false => Err(io::Error::other(format!("{} was not built", built.display()))),
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let status = command.status();
    let why = match status {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => format!("{error}; `cargo xtask test` and `cargo xtask chaos` install it"),
    };
    Err(io::Error::other(format!("{command:?}: {why}")))
}

fn python(place: &Path, modules: &Path) -> io::Result<String> {
    let binding = repository().join("bindings/python");
    let package = place.join("python/lockkeeper");
    if !package.exists() {
        fs::create_dir_all(&package)?;
        for file in fs::read_dir(binding.join("python/lockkeeper"))? {
            let file = file?;
            symlink(file.path(), package.join(file.file_name()))?;
        }
        symlink(module(modules, "lib_lockkeeper.so")?, package.join("_lockkeeper.abi3.so"))?;
    }
    let driver = binding.join("tests/driver.py");
    Ok(format!("PYTHONPATH={} python3 {}", place.join("python").display(), driver.display()))
}

fn node(place: &Path, modules: &Path) -> io::Result<String> {
    let binding = repository().join("bindings/node");
    let package = place.join("node/node_modules/lockkeeper");
    fs::create_dir_all(package.join("lib"))?;
    // Node resolves symlinks, and would search the libraries beside the files that they name.
    for file in fs::read_dir(binding.join("lib"))? {
        let file = file?;
        if file.file_type()?.is_file() {
            fs::copy(file.path(), package.join("lib").join(file.file_name()))?;
        }
    }
    fs::copy(binding.join("package.json"), package.join("package.json"))?;
    let arch = if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" };
    let native = format!("lockkeeper.{}-{arch}.node", std::env::consts::OS);
    fs::copy(module(modules, "liblockkeeper_node.so")?, package.join("lib").join(native))?;
    let driver = place.join("node/driver.mjs");
    fs::copy(binding.join("tests/driver.mjs"), &driver)?;
    Ok(format!("node {}", driver.display()))
}

fn go(place: &Path) -> io::Result<String> {
    let built = place.join("go-driver");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&built).arg("./cmd/driver").current_dir(repository().join("clients/go"));
    run(&mut go)?;
    Ok(built.display().to_string())
}

fn java(place: &Path) -> io::Result<String> {
    let classes = place.join("java");
    let sources = repository().join("clients/java/src/main/java/io/github/lockkeeper");
    let sources = fs::read_dir(sources)?.map(|file| file.map(|file| file.path()));
    let sources = sources.collect::<io::Result<Vec<_>>>()?;
    run(Command::new("javac").args(["--release", "17", "-d"]).arg(&classes).args(sources))?;
    // Quick to start, for a process that lives for seconds.
    let options = "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC";
    Ok(format!("java {options} -cp {} io.github.lockkeeper.Driver", classes.display()))
}
