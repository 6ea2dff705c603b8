//! Files of secrets that every user of this host can read.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::url::Url;

/// Parameters of URLs that name a file with a secret.
const SECRET_FILES: [&str; 5] =
    ["password-file", "sentinel-password-file", "sslkey", "tls-key", "token-file"];

/// A warning if every user of this host can read the file: by its mode, and by those of all directories above
/// it. `None` also for a file that can't be examined.
#[must_use]
pub fn exposed(file: &Path) -> Option<String> {
    let path = file.canonicalize().ok()?;
    let of_file = mode(&path)?;
    (of_file & 0o004 != 0 && path.ancestors().skip(1).all(is_open)).then(|| {
        let file = file.display();
        format!("`{file}` holds a secret, and every user of this host can read it (mode {of_file:04o}): chmod 600 it")
    })
}

/// Whether every user of this host may enter the directory.
fn is_open(folder: &Path) -> bool {
    mode(folder).is_some_and(|mode| mode & 0o001 != 0)
}

fn mode(path: &Path) -> Option<u32> {
    path.metadata().map(|it| it.permissions().mode() & 0o7777).ok()
}

impl Url {
    /// A warning, as of [`exposed`], for each file with a secret that the URL names.
    pub fn exposed_files(&self) -> impl Iterator<Item = String> {
        let files = SECRET_FILES.iter().filter_map(|key| self.parameter::<String>(key, "a path").ok()?);
        files.filter_map(|file| exposed(Path::new(&file)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions, write};

    use super::*;

    #[test]
    fn secret_is_exposed_if_its_file_and_all_directories_above_are_open_to_all() {
        let root = tempfile::tempdir().unwrap();
        let (folder, file) = (root.path().join("keys"), root.path().join("keys/client.key"));
        create_dir(&folder).unwrap();
        write(&file, "secret").unwrap();
        // The directory of temporary files may be the user's own.
        let is_outside_open = root.path().canonicalize().unwrap().ancestors().skip(1).all(is_open);
        let url = format!("lockkeepers://h?tls-cert=x&tls-key={}", file.display());
        for (root_mode, folder_mode, file_mode, is_exposed) in [
            (0o755, 0o755, 0o644, true),
            (0o711, 0o711, 0o604, true),
            (0o755, 0o755, 0o640, false),
            (0o755, 0o750, 0o644, false),
            (0o700, 0o755, 0o644, false),
        ] {
            for (path, mode) in [(root.path(), root_mode), (&folder, folder_mode), (&file, file_mode)] {
                set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
            let warnings: Vec<_> = Url::parse(&url, &["lockkeepers"]).unwrap().exposed_files().collect();
            let wanted = usize::from(is_exposed && is_outside_open);
            assert_eq!(warnings.len(), wanted, "{root_mode:o} {folder_mode:o} {file_mode:o}");
            assert!(warnings.iter().all(|text| text.contains("client.key") && text.contains("chmod 600")));
        }
    }
}
