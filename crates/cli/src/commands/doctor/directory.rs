//! How the location of a lock directory affects the guarantees of `file:`.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use lockkeeper::url::Url;

/// Returns a line on the directory's mode and owner, and one on its filesystem, for the report's settings.
pub(super) fn description(url: &str) -> Vec<String> {
    let Ok(parsed) = url.parse::<Url>() else { return Vec::new() };
    let path = Path::new(&parsed.path);
    let Ok(metadata) = path.metadata() else {
        return vec![format!("`{}` can't be looked at", path.display())];
    };
    let mode = metadata.permissions().mode() & 0o7777;
    let who = match mode {
        _ if mode & 0o002 != 0 => "every user of this host may hold, break and destroy these locks",
        _ if mode & 0o020 != 0 => "its owner and group may hold, break and destroy these locks",
        _ => "only its owner may use these locks",
    };
    let mut lines = vec![format!("mode {mode:04o}, owner {}: {who}", metadata.uid())];
    if let Some(kind) = filesystem(path) {
        let spoils = match kind.as_str() {
            "tmpfs" | "ramfs" => {
                ": gone after a reboot; tokens then go on above by the wall clock, and a lock that is kept closed opens"
            }
            "overlay" => {
                ": a container's own layer; other containers are not excluded, and it goes with the container"
            }
            _ => "",
        };
        lines.push(format!("filesystem {kind}{spoils}"));
    }
    lines
}

/// The type of the filesystem that contains a path, as in `/proc/self/mountinfo`.
fn filesystem(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounted = mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        // Mount points with spaces and similar characters are written with octal escapes; they are not
        // matched.
        let place = place.split(' ').nth(4)?;
        path.starts_with(place).then(|| (place.len(), kind.split(' ').next().unwrap_or_default().to_owned()))
    });
    // Of several filesystems at one mount point, the last one is visible.
    mounted.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}
