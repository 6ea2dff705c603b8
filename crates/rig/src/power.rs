//! A disk whose power can be cut: a filesystem in an image of its own.
//!
//! Responsible for losing at a cut what was not synced, and nothing else; and for leaving no mount behind.
//! Needs root. The files are slower than those of the real disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::folder::Folder;
use crate::program::{Program, ask};

const MAKE: Program = Program { name: "mkfs.ext4", package: "e2fsprogs" };
const MOUNT: Program = Program { name: "mount", package: "mount" };
const UNMOUNT: Program = Program { name: "umount", package: "mount" };
const COPY: Program = Program { name: "cp", package: "coreutils" };
const TRUNCATE: Program = Program { name: "truncate", package: "coreutils" };
/// Shuts a filesystem down as a power cut does.
pub const SHUT_DOWN: Program = Program { name: "xfs_io", package: "xfsprogs" };

/// Size of the image, a sparse file: room for a node, which reserves parts of its log.
const SIZE: &str = "512M";

/// A mounted filesystem.
pub struct PowerDisk {
    folder: Folder,
    /// How often it was mounted.
    mounts: AtomicU32,
}

impl PowerDisk {
    /// Makes a filesystem and mounts it.
    ///
    /// # Panics
    /// This process is not root, or a program is missing.
    #[must_use]
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    /// Like [`PowerDisk::new`], with the image in this folder.
    ///
    /// # Panics
    /// Those of [`PowerDisk::new`].
    #[must_use]
    pub fn within(folder: &Path) -> Self {
        let disk = Self { folder: Folder::within(folder, "power"), mounts: AtomicU32::new(0) };
        std::fs::create_dir(disk.path()).expect("our folder is ours");
        let image = disk.image(0);
        run(TRUNCATE, &[Path::new("-s"), Path::new(SIZE), &image]);
        run(MAKE, &[Path::new("-q"), &image]);
        disk.mount(&image);
        disk
    }

    /// Where its files are.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn image(&self, mount: u32) -> PathBuf {
        self.folder.path().join(format!("image-{mount}"))
    }

    fn mount(&self, image: &Path) {
        run(MOUNT, &[Path::new("-o"), Path::new("loop"), image, &self.path()]);
    }

    /// Cuts the power: from now on each read, write and sync fails, and what was not synced is gone.
    ///
    /// # Panics
    /// A program is missing.
    pub fn cut(&self) {
        run(SHUT_DOWN, &[Path::new("-x"), Path::new("-c"), Path::new("shutdown"), &self.path()]);
    }

    /// Mounts it again, with what had been synced. Its files must not be open any more.
    ///
    /// # Panics
    /// They are.
    pub fn restore(&self) {
        run(UNMOUNT, &[&self.path()]);
        // Of a copy: while another mount namespace has the old image, a mount of it is the filesystem that
        // was shut down.
        let mounts = self.mounts.fetch_add(1, Ordering::SeqCst);
        let (old, new) = (self.image(mounts), self.image(mounts + 1));
        run(COPY, &[Path::new("--sparse=always"), &old, &new]);
        std::fs::remove_file(old).expect("our folder is ours");
        self.mount(&new);
    }
}

impl Default for PowerDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PowerDisk {
    fn drop(&mut self) {
        // Also while a process that is about to end has files open there.
        let _ = ask(UNMOUNT, |command| {
            command.arg("--lazy").arg(self.path());
        });
    }
}

fn run(program: Program, arguments: &[&Path]) {
    let answer = ask(program, |command| {
        command.args(arguments);
    });
    if let Err(why) = answer {
        panic!("`{} {arguments:?}`: {why}", program.name);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::process::Command;

    use super::*;
    use crate::shim::{Number, Shim};

    #[test]
    fn cut_keeps_what_was_synced_and_nothing_else() {
        let disk = PowerDisk::new();
        let write = |name: &str| {
            let mut file = File::create(disk.path().join(name)).unwrap();
            file.write_all(b"written").unwrap();
            file
        };
        write("synced").sync_all().unwrap();
        File::open(disk.path()).unwrap().sync_all().unwrap();
        drop(write("written"));
        disk.cut();
        assert!(File::create(disk.path().join("late")).is_err(), "the disk is off");
        disk.restore();
        let names: Vec<_> =
            std::fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().any(|name| name == "synced"), "{names:?}");
        assert!(!names.iter().any(|name| name == "written" || name == "late"), "{names:?}");
    }

    #[test]
    fn cut_loses_what_a_lying_disk_has_acknowledged() {
        let disk = PowerDisk::new();
        let folder = tempfile::tempdir().unwrap();
        let shim = Shim::new(folder.path());
        let synced = |lies: i64| {
            shim.set(Number::Lie, lies);
            let name = format!("{lies}");
            let dd = Command::new("dd")
                .args(["if=/dev/zero", "bs=512", "count=1", "conv=fsync", "status=none"])
                .arg(format!("of={}", disk.path().join(&name).display()))
                .envs(shim.environment())
                .status();
            assert!(dd.unwrap().success());
            name
        };
        let (kept, lost) = (synced(0), synced(1));
        assert_eq!(shim.get(Number::Syncs), 2);
        disk.cut();
        disk.restore();
        assert!(disk.path().join(kept).exists() && !disk.path().join(lost).exists());
    }
}
