//! Crowds: all sessions connect at once after a restart of all nodes, and a long queue lives through a change
//! of its leader.

use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::Network;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::Result;
use crate::check::check;
use crate::cluster::{Cluster, ClusterStart, DiskKind};
use crate::options::CrowdOptions;
use crate::run::{LARGE_SEGMENT, Programs, free_disk, private_disk};
use crate::worker::crowd::QUEUE;

const NODES: usize = 3;
/// Processes of clients, each on a host of its own.
const PROCESSES: usize = 4;
/// A step that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(240);
/// All waiters are queued by then.
const QUEUED: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// A process of clients, which takes commands.
struct CrowdProcess {
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    process: Child,
}

impl CrowdProcess {
    async fn say(&mut self, command: &str) -> Result {
        Ok(self.commands.write_all(format!("{command}\n").as_bytes()).await?)
    }

    async fn answer(&mut self) -> Result<Value> {
        let line =
            timeout(PATIENCE, self.answers.next_line()).await.map_err(|_| "a crowd does not answer")??;
        Ok(serde_json::from_str(&line.ok_or("a crowd has ended")?)?)
    }
}

/// Says a command to all, and adds up the numbers in their answers.
struct CrowdProcesses(Vec<CrowdProcess>);

impl CrowdProcesses {
    async fn say(&mut self, command: &str) -> Result {
        for process in &mut self.0 {
            process.say(command).await?;
        }
        Ok(())
    }

    /// Done, lost and failed.
    async fn answers(&mut self) -> Result<[u64; 3]> {
        let mut sums = [0; 3];
        for process in &mut self.0 {
            let answer = process.answer().await?;
            for (sum, field) in sums.iter_mut().zip(["done", "lost", "failed"]) {
                *sum += answer[field].as_u64().unwrap_or_default();
            }
        }
        Ok(sums)
    }

    async fn end(mut self) -> Result {
        for process in &mut self.0 {
            process.commands.shutdown().await?;
        }
        for CrowdProcess { commands, mut process, .. } in self.0 {
            drop(commands);
            let status = timeout(PATIENCE, process.wait()).await.map_err(|_| "a crowd does not end")??;
            if !status.success() {
                return Err(format!("a crowd has ended with {status}").into());
            }
        }
        Ok(())
    }
}

/// Runs; returns whether nobody lost anything.
pub(crate) fn run(options: &CrowdOptions) -> Result<bool> {
    let folder = private_disk()?;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let network = Rc::new(Network::around_this_thread(u8::try_from(NODES + PROCESSES)?));
    let programs = Programs::copied(folder.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let summary = runtime.block_on(play(options, &network, &programs, folder.path()));
    free_disk(&folder)?;
    let summary = summary?;
    println!("{summary:#}");
    let fields = ["sessions_lost", "sessions_failed", "waiters_failed", "violations"];
    Ok(fields.iter().all(|field| summary[field] == 0))
}

async fn play(
    options: &CrowdOptions,
    network: &Rc<Network>,
    programs: &Programs,
    folder: &Path,
) -> Result<Value> {
    let mut cluster = Cluster::start(&ClusterStart {
        network,
        hosts: 0..NODES,
        programs: [programs.lockkeeper.clone(), programs.lockkeeper.clone()],
        folder: folder.to_owned(),
        disk: DiskKind::Memory,
        segment_bytes: LARGE_SEGMENT,
        tls: None,
        more: vec![
            // All clients may come to one node, from one network.
            format!("--max-connections={}", options.sessions * 3 / 2 + 1000),
            format!("--max-connections-per-client={}", options.sessions + 500),
        ],
    })
    .await?;
    let histories: Vec<_> = (0..PROCESSES).map(|it| folder.join(format!("crowd{it}.history"))).collect();
    let process = |number: usize| -> Result<CrowdProcess> {
        let mut command = network.command(NODES + number, &programs.chaos);
        command.args(["crowd-worker", "--name", &format!("crowd{number}"), "--url", &cluster.url()]);
        command.args(["--sessions", &(options.sessions / PROCESSES).to_string()]);
        command.args(["--waiters", &(options.waiters / PROCESSES).to_string()]);
        command.env("LOCKKEEPER_HISTORY", &histories[number]);
        let mut command = Command::from(command);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let (Some(commands), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("a crowd without its pipes".into());
        };
        Ok(CrowdProcess { commands, answers: BufReader::new(answers).lines(), process })
    };
    let mut crowd = CrowdProcesses((0..PROCESSES).map(process).collect::<Result<_>>()?);

    // Each client has a lock that it keeps.
    let began = Instant::now();
    let [sessions, ..] = crowd.answers().await?;
    let connected = began.elapsed();
    for node in &mut cluster.nodes {
        node.kill()?;
    }
    let killed = Instant::now();
    crowd.say("pulse").await?;
    for node in &mut cluster.nodes {
        node.start()?;
    }
    cluster.settled().await?;
    let whole = killed.elapsed();
    let [pulsed, lost, _] = crowd.answers().await?;
    let all_pulsed = killed.elapsed();

    let holder = Locks::connect_as(&cluster.url(), "holder").await?;
    let guard = holder.mutex(QUEUE).acquire().await?;
    let began = Instant::now();
    crowd.say("wait").await?;
    let expected = options.waiters / PROCESSES * PROCESSES;
    loop {
        let waiters = holder.inspect(QUEUE).await?.waiter_count;
        if waiters >= expected {
            break;
        }
        if began.elapsed() > QUEUED {
            crowd.say("collect").await?;
            let answers = crowd.answers().await?;
            return Err(format!("{waiters} waiters of {expected}; done, lost and failed: {answers:?}").into());
        }
        sleep(POLL).await;
    }
    let queued = began.elapsed();
    let leader = cluster.settled().await?.leader;
    cluster.nodes[leader].kill()?;
    let killed = Instant::now();
    cluster.nodes[leader].start()?;
    // It is granted by the new leader alone.
    guard.release().await?;
    let released = killed.elapsed();
    crowd.say("collect").await?;
    let [granted, ..] = crowd.answers().await?;
    let all_granted = killed.elapsed();
    cluster.settled().await?;
    crowd.end().await?;
    let checked = check(&histories)?;
    let seconds = |duration: Duration| (duration.as_secs_f64() * 100.0).round() / 100.0;
    Ok(json!({
        "sessions": sessions,
        "connected_s": seconds(connected),
        "restarted_s": seconds(whole),
        "sessions_pulsed": pulsed,
        "all_pulsed_s": seconds(all_pulsed),
        "sessions_lost": lost,
        "sessions_failed": (options.sessions / PROCESSES * PROCESSES) as u64 - pulsed,
        "waiters": expected,
        "queued_s": seconds(queued),
        "released_by_new_leader_s": seconds(released),
        "waiters_granted": granted,
        "all_granted_s": seconds(all_granted),
        "waiters_failed": expected as u64 - granted,
        "operations": checked.counts.operations(),
        "violations": checked.counts.violations,
    }))
}
