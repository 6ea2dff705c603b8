//! Other lock services for tests and benchmarks: installs, starts on loopback, and stops them.
//!
//! Responsible for the lifetime of each service, which is one process with its own port and a folder below
//! `target/services`. [`catalogue`] lists the services and their command lines, [`pidfile`] checks whether a
//! process was started by this tool, [`probe`] checks readiness. `up` starts a service in an empty folder;
//! only `revive` keeps the data of the previous run.

pub(crate) mod catalogue;
#[cfg(any(test, feature = "peers"))]
pub(crate) mod clusters;
mod pidfile;
pub(crate) mod probe;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cargo_metadata::MetadataCommand;
use clap::Subcommand;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::TaskResult;
use crate::needs::{self, Need};
use crate::process::not_started;
use crate::services::catalogue::{SERVICES, ServiceSpec};

/// The time limit for a service to become ready. The slowest, in Java, needs about a second on an idle
/// machine.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// The time limit for a graceful stop; after it the service is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The programs that every service needs.
const DETACHING: &[Need] = &[
    Need { program: "setsid", package: "util-linux", used_by: "the services, which outlive the terminal" },
    Need { program: "bash", package: "bash", used_by: "the services, which keep no descriptors of ours" },
];

/// Closes every descriptor but the first three, then executes the program. Otherwise a lock or a pipe of our
/// caller would stay open while the service runs.
const CLOSE_AND_BECOME: &str = r#"for fd in /proc/self/fd/*; do fd=${fd##*/}; ((fd > 2)) && eval "exec $fd>&-"; done
exec "$@""#;

/// What to do with the services of others.
#[derive(Subcommand)]
pub(crate) enum Services {
    /// Install what is missing, start, and wait until all are ready; leaves alone what runs already
    Up {
        /// Which, by name or family: `redis-fsync`, `redis`, `etcd`, … [default: all]
        names: Vec<String>,
    },
    /// Stop
    Down {
        /// Which, by name or family [default: all]
        names: Vec<String>,
    },
    /// Show version, port, pid, and whether each is ready
    Status {
        /// Which, by name or family [default: all]
        names: Vec<String>,
    },
}

/// Runs `cargo xtask services …`.
pub(crate) fn run(task: &Services) -> TaskResult {
    match task {
        Services::Up { names } => up(&select(names)?),
        Services::Down { names } => down(&select(names)?),
        Services::Status { names } => status(&select(names)?),
    }
}

/// The folder and port of a service.
pub(crate) struct ServiceLocation {
    /// Absolute, so that it identifies the service's process as ours.
    pub(crate) folder: PathBuf,
    pub(crate) port: u16,
}

impl ServiceLocation {
    /// The service's data, which `up` deletes before it starts the service.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.join("pid")
    }

    /// The service's pid, if it runs and is ours.
    pub(crate) fn pid(&self) -> Option<u32> {
        pidfile::read(&self.pid_file()).filter(|pid| pidfile::is_ours(*pid, &self.folder))
    }
}

/// Installs the programs that `services` need, starts those that don't run, and waits until all are ready.
pub(crate) fn up(services: &[&ServiceSpec]) -> TaskResult {
    let services = with_needed(services);
    let needs: Vec<Need> =
        services.iter().flat_map(|service| service.needs).chain(DETACHING).copied().collect();
    needs::install(&needs, "the services need")?;
    let root = root()?;
    let _turn = turn(&root)?;
    let started = start(&services, &root)?;
    for (service, started) in services.iter().zip(started) {
        let pid = place(service, &root).pid().map_or("-".to_owned(), |pid| pid.to_string());
        let what = if started { "started" } else { "runs already" };
        println!("{}: {what}, pid {pid}, 127.0.0.1:{}", service.name, service.port);
    }
    Ok(())
}

/// Restarts `service` with the data of its previous run, and waits until it is ready.
#[cfg(feature = "peers")]
pub(crate) fn revive(service: &ServiceSpec) -> TaskResult {
    let root = root()?;
    let _turn = turn(&root)?;
    let place = place(service, &root);
    let child = spawn(service, &place)?;
    wait_until_ready(service, &place, Some(child))
}

/// Stops `service` with `signal`; returns an error if it did not run.
#[cfg(feature = "peers")]
pub(crate) fn end(service: &ServiceSpec, signal: Signal) -> TaskResult {
    let root = root()?;
    let _turn = turn(&root)?;
    if stop(&place(service, &root), signal)? { Ok(()) } else { Err(format!("{} did not run", service.name)) }
}

/// Stops all `services` that run.
pub(crate) fn down(services: &[&ServiceSpec]) -> TaskResult {
    let root = root()?;
    let _turn = turn(&root)?;
    for service in services {
        let stopped = stop(&place(service, &root), service.ends_by)?;
        println!("{}: {}", service.name, if stopped { "stopped" } else { "did not run" });
    }
    Ok(())
}

fn status(services: &[&ServiceSpec]) -> TaskResult {
    let root = root()?;
    println!("{:<14} {:<10} {:>6} {:>8}  state", "name", "version", "port", "pid");
    for service in services {
        let place = place(service, &root);
        let pid = place.pid();
        let state = match pid {
            None => "does not run".to_owned(),
            Some(_) => {
                (service.ready)(&place).err().map_or("ready".to_owned(), |why| format!("not ready: {why}"))
            }
        };
        let pid = pid.map_or("-".to_owned(), |pid| pid.to_string());
        let version = version(service, &place).unwrap_or_else(|| "-".to_owned());
        println!("{:<14} {version:<10} {:>6} {pid:>8}  {state}", service.name, service.port);
    }
    Ok(())
}

/// The folder and port of `service`, whether it runs or not.
#[cfg(feature = "peers")]
pub(crate) fn place_of(service: &ServiceSpec) -> TaskResult<ServiceLocation> {
    Ok(place(service, &root()?))
}

/// The version that the service's program prints; `None` if it isn't installed.
fn version(service: &ServiceSpec, place: &ServiceLocation) -> Option<String> {
    let output = (service.version)(place).stdin(Stdio::null()).output().ok()?;
    find_version(&String::from_utf8_lossy(&output.stdout))
}

/// The services whose name or family is in `names`, each once, in the catalogue's order; all services if
/// `names` is empty.
fn select(names: &[String]) -> TaskResult<Vec<&'static ServiceSpec>> {
    let is_meant = |service: &ServiceSpec, name: &str| name == service.name || name == service.family;
    for name in names {
        if !SERVICES.iter().any(|service| is_meant(service, name)) {
            let known: BTreeSet<&str> =
                SERVICES.iter().flat_map(|service| [service.name, service.family]).collect();
            let known: Vec<&str> = known.into_iter().collect();
            return Err(format!("there is no service `{name}`; there are: {}", known.join(", ")));
        }
    }
    let wanted =
        |service: &&ServiceSpec| names.is_empty() || names.iter().any(|name| is_meant(service, name));
    Ok(SERVICES.iter().filter(wanted).collect())
}

/// Returns `services`, each preceded by the service that it depends on.
fn with_needed<'a>(services: &[&'a ServiceSpec]) -> Vec<&'a ServiceSpec> {
    let mut all: Vec<&ServiceSpec> = Vec::new();
    for service in services {
        for one in service.after.into_iter().chain([*service]) {
            if !all.iter().any(|other| other.name == one.name) {
                all.push(one);
            }
        }
    }
    all
}

/// Starts all `services` that don't run, waits until all are ready, and returns for each whether it was
/// started. All are started before the first wait, because the nodes of a cluster become ready only together.
fn start(services: &[&ServiceSpec], root: &Path) -> TaskResult<Vec<bool>> {
    let mut children = Vec::new();
    for service in services {
        let place = place(service, root);
        children.push(if place.pid().is_some() { None } else { Some(start_empty(service, &place)?) });
    }
    let mut started = Vec::new();
    for (service, child) in services.iter().zip(children) {
        started.push(child.is_some());
        wait_until_ready(service, &place(service, root), child)?;
    }
    Ok(started)
}

/// Starts `service`, which doesn't run, in an empty folder.
fn start_empty(service: &ServiceSpec, place: &ServiceLocation) -> TaskResult<Child> {
    let name = service.name;
    if TcpStream::connect(("127.0.0.1", place.port)).is_ok() {
        return Err(format!(
            "{name}: port {} is taken by a process that `{}` does not name; stop that one first",
            place.port,
            place.pid_file().display()
        ));
    }
    let failed = |what: &str, error: std::io::Error| format!("{name}: cannot {what}: {error}");
    if place.folder.exists() {
        fs::remove_dir_all(&place.folder).map_err(|error| failed("empty its folder", error))?;
    }
    fs::create_dir_all(place.data()).map_err(|error| failed("make its folder", error))?;
    (service.prepare)(place).map_err(|error| format!("{name}: {error}"))?;
    spawn(service, place)
}

/// Starts the process of `service` in its existing folder, and writes the pid file.
fn spawn(service: &ServiceSpec, place: &ServiceLocation) -> TaskResult<Child> {
    let name = service.name;
    let failed = |what: &str, error: std::io::Error| format!("{name}: cannot {what}: {error}");
    let log = File::create(place.log()).map_err(|error| failed("make its log", error))?;
    let errors = log.try_clone().map_err(|error| failed("open its log", error))?;
    let plain = (service.command)(place);
    // A new session, so that an interrupt on our terminal doesn't reach the service. setsid executes the
    // program with the same pid, unless setsid leads a process group, which it never does here.
    let mut command = Command::new("setsid");
    command.args(["bash", "-c", CLOSE_AND_BECOME, "bash"]).arg(plain.get_program()).args(plain.get_args());
    command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.env(pidfile::MARK, &place.folder).current_dir(&place.folder);
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    let child = command.spawn().map_err(|error| not_started(&command, &error))?;
    pidfile::write(&place.pid_file(), child.id()).map_err(|error| failed("write its pid file", error))?;
    Ok(child)
}

/// Waits until `service` is ready. Returns an error if it ends earlier. `child` is its process if we started
/// it.
fn wait_until_ready(service: &ServiceSpec, place: &ServiceLocation, mut child: Option<Child>) -> TaskResult {
    let name = service.name;
    let until = Instant::now() + READY_WITHIN;
    loop {
        // A child is not checked by its environment, which can't be read while setsid executes the service.
        let has_ended = match &mut child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => place.pid().is_none(),
        };
        if has_ended {
            return Err(format!("{name} ended before it was ready; {}", end_of(&place.log())));
        }
        match (service.ready)(place) {
            Ok(()) => return Ok(()),
            Err(why) if Instant::now() >= until => {
                let seconds = READY_WITHIN.as_secs();
                return Err(format!(
                    "{name} is not ready after {seconds} s: {why}; {}",
                    end_of(&place.log())
                ));
            }
            Err(_) => sleep(LOOK_EVERY),
        }
    }
}

/// Stops the process at `place` with `ends_by`, or with SIGKILL if that does not end it in time. Returns
/// whether a process ran.
fn stop(place: &ServiceLocation, ends_by: Signal) -> TaskResult<bool> {
    let Some(pid) = place.pid() else { return Ok(false) };
    let target = Pid::from_raw(i32::try_from(pid).map_err(|_| format!("pid {pid} is no pid"))?);
    for signal in [ends_by, Signal::SIGKILL] {
        // The error is ignored: the process may have ended since the check.
        let _ = kill(target, signal);
        let until = Instant::now() + ENDS_WITHIN;
        while Instant::now() < until {
            if pidfile::has_ended(pid) {
                let file = place.pid_file();
                fs::remove_file(&file)
                    .map_err(|error| format!("cannot remove {}: {error}", file.display()))?;
                return Ok(true);
            }
            sleep(LOOK_EVERY);
        }
    }
    Err(format!("process {pid} did not end, not even by SIGKILL: look at it with `ps -o stat,wchan {pid}`"))
}

/// The folder of all services: in cargo's target folder, so that `cargo clean` removes it too.
pub(crate) fn root() -> TaskResult<PathBuf> {
    // Cached: asking cargo takes a tenth of a second, and the benchmark calls this often.
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(root) = ROOT.get() {
        return Ok(root.clone());
    }
    let metadata = MetadataCommand::new()
        .no_deps()
        .exec()
        .map_err(|error| format!("cannot ask cargo for the target folder: {error}"))?;
    let root = metadata.target_directory.into_std_path_buf().join("services");
    Ok(ROOT.get_or_init(|| root).clone())
}

fn place(service: &ServiceSpec, root: &Path) -> ServiceLocation {
    ServiceLocation { folder: root.join(service.name), port: service.port }
}

/// Takes the lock that serializes starts and stops of services; it is held until the result is dropped.
fn turn(root: &Path) -> TaskResult<Flock<File>> {
    let path = root.join("lock");
    let file = fs::create_dir_all(root).and_then(|()| File::create(&path));
    let file = file.map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| format!("cannot lock {}: {error}", path.display()))
}

/// The last lines of a log, for the error of a service that doesn't start.
fn end_of(log: &Path) -> String {
    const LINES: usize = 8;
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return format!("its log {} is empty", log.display());
    }
    format!("the end of {}:\n{}", log.display(), lines[lines.len().saturating_sub(LINES)..].join("\n"))
}

/// The first number in `text` that contains a dot, such as `1.2` or `1.2.3`.
fn find_version(text: &str) -> Option<String> {
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.').map(|part| part.trim_matches('.'));
    numbers.filter(|number| number.contains('.')).map(str::to_owned).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_parsed_from_program_output() {
        for (text, version) in [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0", "7.0.15"),
            ("etcd Version: 3.4.23\nGit SHA: Not provided", "3.4.23"),
            ("3.8.0-11+deb12u2", "3.8.0"),
        ] {
            assert_eq!(find_version(text).as_deref(), Some(version), "{text}");
        }
        assert_eq!(find_version("command not found: 127"), None);
    }

    #[test]
    fn a_family_selects_its_members_and_an_unknown_name_is_an_error_with_all_names() {
        let names = |typed: &[&str]| -> TaskResult<Vec<&str>> {
            let typed: Vec<String> = typed.iter().map(|name| (*name).to_owned()).collect();
            Ok(select(&typed)?.into_iter().map(|service| service.name).collect())
        };
        assert_eq!(names(&["redis"]), Ok(vec!["redis-fsync", "redis-nofsync", "redis-replica"]));
        assert_eq!(names(&["etcd", "redis-fsync", "redis-fsync"]), Ok(vec!["redis-fsync", "etcd"]));
        assert_eq!(names(&[]).map(|names| names.len()), Ok(SERVICES.len()));
        let error = names(&["etcd", "no-such-service"]).unwrap_err();
        assert!(error.contains("`no-such-service`") && error.contains("zookeeper"), "{error}");
    }

    #[test]
    fn dependencies_are_started_first_and_once() {
        let started = |typed: &[&str]| -> Vec<&str> {
            let typed: Vec<String> = typed.iter().map(|name| (*name).to_owned()).collect();
            with_needed(&select(&typed).unwrap()).into_iter().map(|service| service.name).collect()
        };
        assert_eq!(started(&["pgbouncer"]), ["postgres", "pgbouncer"]);
        assert_eq!(started(&["pgbouncer", "postgres"]), ["postgres", "pgbouncer"]);
        assert_eq!(started(&["redis-replica"]), ["redis-fsync", "redis-replica"]);
        assert_eq!(started(&["etcd"]), ["etcd"]);
    }

    #[test]
    fn a_service_that_ends_at_once_is_an_error_with_the_end_of_its_log() {
        let root = tempfile::tempdir().unwrap();
        let service = ServiceSpec {
            command: |_| {
                let mut command = Command::new("sh");
                command.args(["-c", "echo no licence found >&2; exit 3"]);
                command
            },
            ready: |_| Err("nobody listens".to_owned()),
            prepare: |_| Ok(()),
            port: 9,
            ..SERVICES[0]
        };
        let error = start(&[&service], root.path()).unwrap_err();
        assert!(error.contains("ended before it was ready"), "{error}");
        assert!(error.contains("no licence found"), "{error}");
    }

    #[test]
    fn a_service_is_started_once_and_stopped_by_its_pid() {
        let root = tempfile::tempdir().unwrap();
        let service = ServiceSpec {
            command: |_| {
                let mut command = Command::new("sleep");
                command.arg("1000");
                command
            },
            ready: |place| {
                let pid = place.pid().ok_or("not yet")?;
                let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                if line.starts_with("sleep") { Ok(()) } else { Err(format!("is still {line:?}")) }
            },
            prepare: |_| Ok(()),
            port: 9,
            ..SERVICES[0]
        };
        let place = place(&service, root.path());
        // A descriptor without close-on-exec, like a lock inherited from the calling shell.
        let inherited = nix::unistd::dup(std::io::stdin()).unwrap();
        assert_eq!(place.pid(), None);
        assert_eq!(start(&[&service], root.path()), Ok(vec![true]));
        let pid = place.pid();
        assert!(pid.is_some());
        assert_eq!(start(&[&service], root.path()), Ok(vec![false]));
        let open = fs::read_dir(format!("/proc/{}/fd", pid.unwrap())).unwrap().count();
        assert_eq!(open, 3, "a service has inherited a descriptor");
        drop(inherited);
        assert_eq!(place.pid(), pid);
        assert_eq!(stop(&place, service.ends_by), Ok(true));
        assert_eq!(place.pid(), None);
        assert_eq!(stop(&place, service.ends_by), Ok(false));
    }
}
