//! One module per command.

mod access;
mod advise;
mod backup;
mod bench;
mod bulk;
mod cluster;
mod doctor;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod explain;
mod fence;
mod gate;
mod inspect;
mod lab;
mod nodes;
mod operate;
#[cfg(feature = "postgres")]
mod postgres;
mod restore;
mod run;
mod serve;
mod tls;
mod torture;
mod verify;
mod watch;

use std::fs::File;
use std::future::Future;
use std::sync::RwLock;
use std::time::Duration;

use clap::CommandFactory;
use tokio::runtime::Builder;

use crate::args::{Cli, Command, Sessions, SessionsTask};
use crate::exit::{Failure, INTERNAL, IO, OK};
use crate::progress::ProgressLine;

/// How long a command waits for an answer before it shows that it waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long idle threads are kept: longer than any process lives.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// Descriptors that a runtime and a lock of any service take, at least.
const FILES_MIN: usize = 16;
/// Threads of the library, which keep leases and look up names, and one for files.
const THREADS_MIN: usize = 5;

/// Runs a command and returns its exit code.
///
/// # Errors
/// [`Failure`] has the exit code and the message for standard error.
pub fn run(cli: Cli) -> Result<u8, Failure> {
    match cli.command {
        Command::Run(args) => block_on(run::run(args)),
        Command::Elect(args) => block_on(run::elect::elect(args)),
        Command::Partitions(args) => block_on(run::partitions::partitions(args)),
        Command::Leader(args) if args.watch => block_on(run::elect::leader(args)),
        Command::Leader(args) => block_on(patiently(run::elect::leader(args))),
        Command::Serve(args) => serve::serve(args),
        Command::Tls(command) => tls::tls(&command),
        Command::Token(command) => access::token(&command),
        Command::Access(command) => access::access(&command),
        Command::Gate(args) => block_on_all_cores(gate::gate(args)),
        Command::Advise(args) => advise::advise(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Conformance { args } => Err(lab::lab("conformance", &args)),
        Command::Pitfalls { args } => Err(lab::lab("pitfalls", &args)),
        Command::Ls(args) => block_on(patiently(inspect::ls(args))),
        Command::Show(args) => block_on(patiently(inspect::show(args))),
        Command::Watch(args) => block_on(watch::watch(args)),
        Command::Break(args) if args.name.is_none() => block_on(bulk::break_holds(args)),
        Command::Break(args) => block_on(patiently(operate::break_hold(args))),
        Command::Sessions(Sessions { task: Some(SessionsTask::End(args)), .. }) => {
            block_on(bulk::end_sessions(args))
        }
        Command::Sessions(args) => block_on(patiently(inspect::sessions(args))),
        Command::SetLimit(args) => block_on(patiently(operate::set_limit(args))),
        Command::Cluster(task) => block_on(patiently(cluster::cluster(task))),
        Command::Backup(args) => block_on(backup::backup(args)),
        Command::Restore(args) => restore::restore(args),
        Command::CheckToken(args) => block_on(patiently(operate::check_token(args))),
        Command::Fence(args) => fence::fence(&args),
        Command::Torture(args) => torture::torture(&args),
        Command::Verify(args) if args.follow => block_on(verify::follow::follow(args)),
        Command::Verify(args) => verify::verify(&args),
        Command::Bench(args) => block_on_all_cores(bench::bench(args)),
        Command::Doctor(args) => block_on(doctor::doctor(args)),
        #[cfg(feature = "dynamodb")]
        Command::Dynamodb(task) => block_on(dynamodb::dynamodb(task)),
        #[cfg(not(feature = "dynamodb"))]
        Command::Dynamodb(_) => Err(Failure::not_compiled_in("dynamodb", "dynamodb")),
        #[cfg(feature = "postgres")]
        Command::Postgres(task) => block_on(postgres::postgres(task)),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lockkeeper", &mut script);
            crate::output::page(String::from_utf8_lossy(&script).trim_end())?;
            Ok(OK)
        }
        Command::Man { dir } => {
            let failed = |error: std::io::Error| {
                Failure::system(
                    crate::exit::CANNOT_CREATE,
                    &format!("cannot write to `{}`", dir.display()),
                    &error,
                )
            };
            std::fs::create_dir_all(&dir).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), &dir).map_err(failed)?;
            Ok(OK)
        }
    }
}

/// Shows on a terminal that a command waits for its lock service, which may take ten seconds if no node
/// leads.
async fn patiently(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        () = tokio::time::sleep(PATIENCE) => {}
    }
    let line = ProgressLine::on_terminal();
    if let Some(line) = &line {
        line.show("no answer from the lock service so far".to_owned());
    }
    let done = work.await;
    // Cleared before anything else is printed.
    drop(line);
    done
}

fn block_on(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    check_room(0)?;
    let runtime = Builder::new_current_thread().enable_io().enable_time().thread_keep_alive(FOREVER).build();
    // Starts a blocking thread now and keeps it: later, when a record is written or a name is resolved, the
    // job may have used up all threads, and tokio would panic.
    if let Ok(runtime) = &runtime {
        drop(runtime.spawn_blocking(|| {}));
    }
    run_on(runtime, work)
}

/// Runs on a multi-thread runtime. A benchmark should measure the runtime that server programs use, on which
/// waking a task from another thread is cheaper. A worker of `torture` blocks its own thread, and needs
/// another for the library.
fn block_on_all_cores(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    check_room(std::thread::available_parallelism().map_or(1, usize::from))?;
    run_on(Builder::new_multi_thread().enable_all().build(), work)
}

/// Checks that the system allows the threads and descriptors of a runtime with `workers` threads and of a
/// lock service's client: tokio panics where the system refuses one.
fn check_room(workers: usize) -> Result<(), Failure> {
    let files: std::io::Result<Vec<File>> = (0..FILES_MIN).map(|_| File::open("/dev/null")).collect();
    files.map_err(|error| {
        let text = format!("this program needs at least {FILES_MIN} more open files; raise `ulimit -n`");
        Failure::system(IO, &text, &error)
    })?;
    let all_run = RwLock::new(());
    std::thread::scope(|scope| {
        let _starting = all_run.write();
        let mut threads = (0..workers + THREADS_MIN)
            .map(|_| std::thread::Builder::new().spawn_scoped(scope, || drop(all_run.read())));
        threads.try_for_each(|thread| thread.map(drop))
    })
    .map_err(|error| {
        let text = format!("this program needs {} threads; raise `ulimit -u`", workers + THREADS_MIN);
        Failure::system(IO, &text, &error)
    })
}

fn run_on(
    runtime: std::io::Result<tokio::runtime::Runtime>,
    work: impl Future<Output = Result<u8, Failure>>,
) -> Result<u8, Failure> {
    let runtime =
        runtime.map_err(|error| Failure::new(INTERNAL, format!("no runtime can be started: {error}")))?;
    runtime.block_on(work)
}
