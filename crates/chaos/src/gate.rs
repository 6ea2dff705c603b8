//! The gate, with a service behind it that can't check tokens, on a host of their own. With the planted
//! mistake `two-gates`, the host has two of each.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use lockkeeper_rig::Network;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::options::UpstreamOptions;
use crate::processes::{ended_within, reaches, stands_still};
use crate::run::Programs;
use crate::worker::SERVICE;
use crate::worker::answers::replace;

/// Of the first gate; that of a second one is one higher.
const PORT: u16 = 5630;
/// Of the service behind the first gate.
const UPSTREAM_PORT: u16 = 8080;
/// More than the upstream works on a request whose connection is gone.
const SETTLE: &str = "2s";
/// How long a tenth of all writes take at the upstream, so that a kill of the gate leaves some there.
const SLOW: Duration = Duration::from_millis(100);

/// The gate of a round.
pub(crate) struct ChaosGate {
    pub(crate) host: usize,
    /// From 0 on. The gates of a round have marks of their own; the services behind them share their files.
    number: u16,
    network: Rc<Network>,
    program: PathBuf,
    folder: PathBuf,
    upstream: Child,
    child: Option<Child>,
}

impl ChaosGate {
    /// Starts both, with their data in `folder`.
    ///
    /// # Errors
    /// The gate does not accept connections after half a minute.
    pub(crate) async fn start(
        network: &Rc<Network>,
        programs: &Programs,
        (host, number): (usize, u16),
        folder: &Path,
    ) -> Result<Self> {
        let data = folder.join("gated");
        fs::create_dir_all(&data)?;
        let mut upstream = network.command(host, &programs.chaos);
        upstream.args(["upstream", "--listen", &upstream_address(number), "--data"]).arg(&data);
        let upstream = spawn(upstream, folder)?;
        let (network, folder, program) = (Rc::clone(network), folder.to_owned(), programs.lockkeeper.clone());
        let mut gate = Self { host, number, network, program, folder, upstream, child: None };
        gate.begin().await?;
        Ok(gate)
    }

    /// Starts the gate, and waits for it.
    async fn begin(&mut self) -> Result {
        let mut command = self.network.command(self.host, &self.program);
        command.args([
            "gate",
            "--upstream",
            &format!("http://{}", upstream_address(self.number)),
            "--settle",
            SETTLE,
            "--wait",
            "1s",
            "--admin-listen",
            "127.0.0.1:0",
        ]);
        command
            .args(["--listen", &self.address().to_string(), "--data"])
            .arg(self.folder.join(format!("gate{}", self.number)));
        command.env("LOCKKEEPER_HISTORY", self.history()).env("LOCKKEEPER_HISTORY_SERVICE", SERVICE);
        self.child = Some(spawn(command, &self.folder)?);
        let until = Instant::now() + Duration::from_secs(30);
        while !self.is_there() {
            if Instant::now() >= until {
                return Err(format!("the gate does not come up: {}", self.log()).into());
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Where workers reach the gate.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((self.network.address(self.host), PORT + self.number))
    }

    pub(crate) fn history(&self) -> PathBuf {
        self.folder.join(format!("gate{}.history", self.number))
    }

    /// SIGKILL; started again after this time. Returns whether it was away.
    pub(crate) async fn kill_and_start(&mut self, after: Duration) -> Result<bool> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        sleep(after).await;
        let was_away = !self.is_there();
        self.begin().await?;
        Ok(was_away)
    }

    /// SIGSTOP for this time. Returns whether it has stood still.
    pub(crate) async fn stop(&mut self, lasts: Duration) -> Result<bool> {
        self.signal(Signal::SIGSTOP)?;
        let stood = stands_still(lasts, || self.decided()).await;
        self.signal(Signal::SIGCONT)?;
        Ok(stood)
    }

    /// Kills the service, and ends the gate by SIGTERM; returns the failure of a gate that had ended, or does
    /// not end.
    pub(crate) async fn end(mut self) -> Result<Option<String>> {
        self.upstream.kill()?;
        self.upstream.wait()?;
        self.signal(Signal::SIGTERM)?;
        let mut child = self.child.take().ok_or("the gate does not run")?;
        match ended_within(&mut child, Duration::from_secs(60)).await? {
            Some(status) if status.success() => Ok(None),
            Some(status) => Ok(Some(format!("the gate has ended: {status}; {}", self.log()))),
            None => {
                child.kill()?;
                child.wait()?;
                Ok(Some("the gate does not end".into()))
            }
        }
    }

    fn signal(&self, signal: Signal) -> Result {
        let child = self.child.as_ref().ok_or("the gate does not run")?;
        Ok(kill(Pid::from_raw(i32::try_from(child.id())?), signal)?)
    }

    fn is_there(&self) -> bool {
        self.is_reached_from(self.host)
    }

    pub(crate) fn is_reached_from(&self, host: usize) -> bool {
        reaches(&self.network, host, self.address())
    }

    /// The size of its history.
    fn decided(&self) -> u64 {
        fs::metadata(self.history()).map_or(0, |it| it.len())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("gate.log")).unwrap_or_default().trim_end().to_owned()
    }
}

fn upstream_address(number: u16) -> String {
    format!("127.0.0.1:{}", UPSTREAM_PORT + number)
}

fn spawn(mut command: Command, folder: &Path) -> Result<Child> {
    let log = File::options().create(true).append(true).open(folder.join("gate.log"))?;
    Ok(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?)
}

/// A service over HTTP that keeps one version for each path, checks nothing, and is slow now and then.
pub(crate) fn upstream(options: &UpstreamOptions) -> Result {
    let listener = TcpListener::bind(options.listen)?;
    loop {
        let (stream, _) = listener.accept()?;
        let data = options.data.clone();
        thread::spawn(move || {
            // The gate breaks connections when it is killed.
            let _ = serve(stream, &data);
        });
    }
}

/// Answers the requests of one connection.
fn serve(mut stream: TcpStream, data: &Path) -> Result {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let [method, path, ..] = line.split(' ').collect::<Vec<_>>()[..] else { return Ok(()) };
        let file = data.join(path.trim_start_matches('/').replace('/', "_"));
        let is_write = method == "PUT";
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let answer = if is_write {
            if fastrand::u8(0..10) == 0 {
                thread::sleep(SLOW);
            }
            let made = String::from_utf8(body)?;
            replace(&file, &data.join(format!("{made}.new")), &made)?;
            String::new()
        } else {
            fs::read_to_string(&file).unwrap_or_default()
        };
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len())?;
    }
}
