//! Filesystem types that cannot carry locks.

/// `statfs` type numbers, and whether `?fuse=allow` permits the type. From `linux/magic.h` and the
/// filesystems' own sources.
const NETWORK: &[(u64, &str, bool)] = &[
    (0x6969, "NFS", false),
    (0x517b, "SMB", false),
    (0xff53_4d42, "CIFS", false),
    (0xfe53_4d42, "SMB2", false),
    (0x0102_1997, "9p", false),
    (0x5346_414f, "AFS", false),
    (0x6b41_4653, "AFS", false),
    (0x7375_7245, "CODA", false),
    (0x564c, "NCP", false),
    (0x00c3_6400, "Ceph", false),
    (0x0bd0_0bd0, "Lustre", false),
    (0x0116_1970, "GFS2", false),
    (0x7461_636f, "OCFS2", false),
    (0x786f_4256, "VirtualBox shared folder", false),
    (0x6573_5546, "FUSE", true),
];

/// Why a directory on a filesystem of this type is refused; `None` if it is accepted.
pub(super) fn refusal(magic: u64, fuse_allowed: bool) -> Option<String> {
    let &(_, name, fuse) = NETWORK.iter().find(|(number, ..)| *number == magic)?;
    if fuse && fuse_allowed {
        return None;
    }
    let instead = "use a directory on a local disk, or `lockkeeper://…`, `redis://…` for several hosts";
    Some(if fuse {
        format!(
            "its filesystem is of the type {name}, where a program decides what a flock means and it may be another \
             host's; {instead}; if you know that it is local and has flock, add `?fuse=allow`"
        )
    } else {
        format!(
            "its filesystem is of the type {name}, whose flock and named pipes don't reach other hosts reliably and \
             may be given up by the server under a living holder; {instead}"
        )
    })
}

/// The type of the filesystem of an open file.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn magic_of(file: &std::fs::File) -> std::io::Result<u64> {
    // The kernel's numbers have 32 bits; the width and sign of the field depend on the platform.
    Ok(u64::from(nix::sys::statfs::fstatfs(file)?.filesystem_type().0 as u32))
}

/// Other systems have no such numbers: nothing is refused.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn magic_of(_file: &std::fs::File) -> std::io::Result<u64> {
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_filesystems_are_refused_by_name_and_local_ones_are_not() {
        for (magic, name) in [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0x0102_1997, "9p")] {
            let why = refusal(magic, true).unwrap();
            assert!(why.contains(name) && why.contains("lockkeeper://"), "{why}");
        }
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630] {
            assert_eq!(refusal(local, false), None);
        }
    }

    #[test]
    fn fuse_is_refused_unless_it_is_allowed() {
        assert!(refusal(0x6573_5546, false).unwrap().contains("?fuse=allow"));
        assert_eq!(refusal(0x6573_5546, true), None);
    }
}
