//! Values derived from the arguments and the environment: the lock service's address and the client's label.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, stderr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{LockName, Locks};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::AccessFlags;

use crate::exit::{CANNOT_CREATE, CONFIG, Failure, PERMISSION, USAGE};

/// The lock directory for the whole host.
const SHARED_DIR: &str = "/var/lib/lockkeeper";

/// Returns the lock service's address: the given one, or that of a lock directory of this host.
///
/// # Errors
/// No address was given and no default directory can be determined, or the shared one can't be used.
pub fn locks_url(given: Option<&str>, local: bool) -> Result<String, Failure> {
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        return Ok(given.to_owned());
    }
    let (dir, whom) = default_dir()?;
    // Without a terminal the line is in the mail of a cron job: there it is printed only when the directory
    // is made.
    if !local && (stderr().is_terminal() || !dir.exists()) {
        crate::output::say(format_args!(
            "the locks are in {}, for {whom} on this host only (--local silences this line; --locks URL names another \
             lock service)",
            dir.display()
        ));
    }
    if dir == Path::new(SHARED_DIR) {
        make_shared(&dir)?;
    }
    let path: String = dir.as_os_str().as_bytes().iter().map(|&byte| encoded(byte)).collect();
    Ok(format!("file://{path}"))
}

/// Returns the address of Lockkeeper's own service, for commands that have no other. Those that refuse the
/// default directory of this host would speak of a directory that nobody has named.
///
/// # Errors
/// No address was given.
pub fn service_url(given: Option<&str>) -> Result<String, Failure> {
    let given = given.filter(|given| !given.is_empty());
    let missing = "which service? Name it with `--locks lockkeeper://HOST` or LOCKKEEPER_URL";
    given.map(ToOwned::to_owned).ok_or_else(|| Failure::new(USAGE, missing))
}

/// Returns the address for display, without its password.
pub fn shown(url: &str) -> String {
    url.parse::<lockkeeper::url::Url>().map_or_else(|error| error.to_string(), |url| url.to_string())
}

/// Whether an argument of ours contains a password: other users of the machine can see arguments. Those of
/// the command that runs under the lock are not ours.
pub fn shows_password(arguments: impl IntoIterator<Item = OsString>) -> bool {
    let ours = arguments.into_iter().take_while(|argument| argument != "--");
    ours.filter_map(|argument| argument.into_string().ok()).any(|argument| {
        let value = argument.strip_prefix("--").and_then(|option| option.split_once('=')).map(|(_, it)| it);
        let url = value.unwrap_or(&argument).parse::<lockkeeper::url::Url>();
        url.is_ok_and(|url| url.has_password())
    })
}

fn encoded(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

/// The shared directory if there is one: locks in another directory would exclude nobody who uses it, so one
/// that can't be used is an error. Otherwise a directory of this user; of root, who may run jobs for the
/// whole host, only if its HOME is set and its own.
fn default_dir() -> Result<(PathBuf, &'static str), Failure> {
    const EVERYONE: &str = "everyone who may write there";
    let shared = Path::new(SHARED_DIR);
    match shared.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Ok(_) => {
            usable(shared).map_err(|errno| unusable(errno.desc()))?;
            return Ok((shared.to_owned(), EVERYONE));
        }
        Err(error) => return Err(unusable(&error.to_string())),
    }
    let root = nix::unistd::geteuid().is_root();
    let own = |variable: &str| {
        let path = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())?;
        (!root || owner(&path) == Some(0)).then_some(path)
    };
    let state = own("XDG_STATE_HOME").or_else(|| own("HOME").map(|home| home.join(".local/state")));
    match state {
        Some(state) => Ok((state.join("lockkeeper"), "this user")),
        None if root => Ok((shared.to_owned(), EVERYONE)),
        None => Err(Failure::new(
            CONFIG,
            format!(
                "no place for locks: HOME is not set and there is no {SHARED_DIR}; say where with `--locks file:///dir` or \
                 LOCKKEEPER_URL"
            ),
        )),
    }
}

/// Whether this process may make files in a directory.
fn usable(dir: &Path) -> nix::Result<()> {
    if nix::sys::stat::stat(dir)?.st_mode & libc::S_IFMT != libc::S_IFDIR {
        return Err(Errno::ENOTDIR);
    }
    nix::unistd::faccessat(AT_FDCWD, dir, AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS)
}

fn unusable(why: &str) -> Failure {
    let user = nix::unistd::geteuid();
    let user = nix::unistd::User::from_uid(user).ok().flatten().map_or(user.to_string(), |user| user.name);
    Failure::new(
        PERMISSION,
        format!(
            "the locks of this host are in {SHARED_DIR}, which {user} can't use: {why}; let the user write there (`chmod \
             1777 {SHARED_DIR}`, in a unit `ReadWritePaths={SHARED_DIR}`), or name other locks with `--locks file:///dir` or \
             LOCKKEEPER_URL: those exclude nobody who uses {SHARED_DIR}"
        ),
    )
}

/// The owner of a directory, or of the one in which it would be made.
fn owner(path: &Path) -> Option<u32> {
    path.ancestors().find_map(|path| path.metadata().ok()).map(|metadata| metadata.uid())
}

/// Makes the shared directory, if it is missing, with the rights of one for everyone.
fn make_shared(dir: &Path) -> Result<(), Failure> {
    if dir.exists() {
        return Ok(());
    }
    let made = std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o1777)));
    made.map_err(|error| {
        let text =
            format!("can't make {}: {error}; name other locks with `--locks file:///dir`", dir.display());
        Failure::new(CANNOT_CREATE, text)
    })
}

/// Connects with a label that contains user, host, process id and program: a command of ours, or the one that
/// runs under the lock. All clients of the lock service can read it, so it never contains arguments.
///
/// # Errors
/// The lock service can't be used.
pub async fn connect(url: &str, program: &str) -> Result<Locks, Failure> {
    Ok(Locks::connect_as(url, &label(program)).await?)
}

/// User, host, process id and program.
pub fn label(program: &str) -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    let user = user.map_or_else(|| nix::unistd::getuid().to_string(), |user| user.name);
    let host = nix::unistd::gethostname().unwrap_or_default();
    let text = format!("{user}@{} pid {}: {program}", host.to_string_lossy(), std::process::id());
    text.replace(char::is_control, " ")
}

/// Parses a lock name from an argument, which need not be UTF-8.
///
/// # Errors
/// The argument is not a valid lock name.
pub fn lock_name(typed: &OsStr) -> Result<LockName, Failure> {
    LockName::parse_bytes(typed.as_bytes()).map_err(|error| {
        let is_url = typed.to_string_lossy().contains("://");
        let hint = if is_url { "; the address of a lock service goes behind --locks" } else { "" };
        Failure::new(USAGE, format!("{error}{hint}"))
    })
}

/// Parses `5s`, `500ms`, `2m`, `1h30m`.
///
/// # Errors
/// The argument is not a duration; the message contains it, and the accepted formats.
pub fn duration(typed: &str) -> Result<Duration, String> {
    if typed == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(typed)
        .map_err(|_| "a duration is a number with a unit, as in 500ms, 5s, 2m or 1h".to_owned())
}

/// The URL with other hosts; user, password, path and parameters are kept.
pub(crate) fn with_hosts(url: &str, hosts: &str) -> String {
    let Some((scheme, rest)) = url.split_once("//") else { return url.to_owned() };
    let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let login = authority.rfind('@').map_or("", |at| &authority[..=at]);
    format!("{scheme}//{login}{hosts}{rest}")
}
