//! The process of a driver: a program around a client in another language, which takes commands
//! (docs/write-a-client.md).

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_lab::conformance::protocol::{CommandError, DriverCommand, Hello, NumberedCommand, Said};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::Result;
use crate::processes::ending_with_us;

/// How long a driver may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// The answer to a command.
pub(crate) type DriverAnswer = std::result::Result<Value, CommandError>;

/// A driver that runs.
pub(crate) struct Driver {
    commands: tokio::sync::Mutex<Option<ChildStdin>>,
    next_id: AtomicU64,
    pending: Mutex<HashMap<u64, oneshot::Sender<DriverAnswer>>>,
}

/// What a driver says, and its process.
pub(crate) struct DriverOutput {
    lines: Lines<BufReader<ChildStdout>>,
    child: Child,
}

impl Driver {
    /// Starts a driver by a shell's command line, and waits for its first line. It ends with this thread.
    pub(crate) async fn start(command: &str) -> Result<(Arc<Self>, Hello, DriverOutput)> {
        let mut shell = ending_with_us();
        shell.args(["sh", "-c", &format!("exec env {command}")]);
        let mut shell = tokio::process::Command::from(shell);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let (Some(commands), Some(says)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a driver was started without its pipes".into());
        };
        let mut lines = BufReader::new(says).lines();
        let hello = timeout(PATIENCE, lines.next_line()).await.map_err(|_| "the driver says nothing")??;
        let hello = serde_json::from_str(&hello.ok_or("the driver has ended at once")?)?;
        let (commands, pending) = (tokio::sync::Mutex::new(Some(commands)), Mutex::default());
        let driver = Self { commands, next_id: AtomicU64::new(1), pending };
        Ok((Arc::new(driver), hello, DriverOutput { lines, child }))
    }

    /// Sends a command; returns its id, and where its answer arrives.
    pub(crate) async fn send(
        &self,
        command: DriverCommand,
    ) -> Result<(u64, oneshot::Receiver<DriverAnswer>)> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let line = format!("{}\n", NumberedCommand { id, command }.text());
        let (sender, answer) = oneshot::channel();
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        let mut commands = self.commands.lock().await;
        commands.as_mut().ok_or("the driver's input has ended")?.write_all(line.as_bytes()).await?;
        Ok((id, answer))
    }

    /// Sends a command and waits for its answer.
    pub(crate) async fn call(&self, command: DriverCommand) -> Result<DriverAnswer> {
        let (_, answer) = self.send(command).await?;
        answer.await.map_err(|_| "the driver has ended".into())
    }

    /// Ends its input: it closes the client, and ends.
    pub(crate) async fn end(&self) {
        self.commands.lock().await.take();
    }
}

impl DriverOutput {
    /// Takes answers until the driver has ended by itself. Losses are not taken: tasks ask for them.
    ///
    /// # Errors
    /// It says what no driver may say, or has failed.
    pub(crate) async fn listen(&mut self, driver: &Driver) -> Result {
        while let Some(line) = self.lines.next_line().await? {
            match Said::parse(&line).map_err(|error| format!("the driver says {line}: {error}"))? {
                Said::Answer { id: Some(id), answer } => {
                    let sender = driver.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                    let sender = sender.ok_or_else(|| format!("the driver answers to nothing: {line}"))?;
                    // A task may have ended.
                    let _ = sender.send(answer);
                }
                Said::Answer { id: None, .. } => return Err(format!("the driver says {line}").into()),
                Said::Lost { .. } => {}
            }
        }
        let status = timeout(PATIENCE, self.child.wait()).await.map_err(|_| "the driver does not end")??;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the driver has ended with {status}").into()),
        }
    }
}
