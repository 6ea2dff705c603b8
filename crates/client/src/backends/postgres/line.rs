//! A connection driven by its user: no other task performs its I/O, so that a statement crosses to no other task or
//! thread.
//!
//! Its time limits work on the backend's thread only (`LeaseThread::timer`). A user on another runtime hands the connection
//! to that thread if it takes long.

use std::time::{Duration, Instant};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Notification, Row, SimpleQueryRow, Statement};

use super::answer::{NoAnswer, answered_by, rows};
use super::cancel::Cancel;
use super::carried::Carried;
use crate::io::LeaseThread;

/// A connection for one user at a time. Closed on drop.
pub(super) struct Line {
    // Dropped before `carried`, which can then send a Terminate message.
    client: Client,
    carried: Carried,
    cancel: Cancel,
    worker: LeaseThread,
}

impl Line {
    pub(super) fn new(client: Client, carried: Carried, cancel: Cancel, worker: LeaseThread) -> Self {
        Self { client, carried, cancel, worker }
    }

    /// `host:port`, as shown to users.
    pub(super) fn server(&self) -> &str {
        self.cancel.server()
    }

    /// A handle that cancels the running statement. The statement's answer shows whether that took effect; a late
    /// request may hit the next statement.
    pub(super) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Whether the connection is still open, judged by data that has already arrived. Needs no runtime.
    pub(super) fn look(&mut self) -> bool {
        self.carried.look()
    }

    /// Discards pending notifications.
    pub(super) fn forget_notices(&mut self) {
        self.carried.forget_notices();
    }

    /// Waits for notifications.
    ///
    /// # Errors
    /// Why the connection ended.
    pub(super) async fn notices(&mut self) -> Result<Vec<Notification>, String> {
        self.carried.notices().await
    }

    /// Runs statements in the simple protocol, which every pooler supports, and returns the rows of all, without a time
    /// limit. Cancel-safe: the statements continue, and later ones queue behind them.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn wait_for(&mut self, sql: &str) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        answered(&self.client, &mut self.carried, sql).await
    }

    /// Like [`Self::wait_for`], for at most `limit`; after that the statement may still be running.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn ask_within(
        &mut self,
        sql: &str,
        limit: Duration,
    ) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        tokio::select! {
            biased;
            answer = answered(&self.client, &mut self.carried, sql) => answer,
            () = self.worker.timer(Instant::now() + limit) => Err(NoAnswer::Silent(limit)),
        }
    }

    /// Prepares a statement within the address' `timeout=`. For direct connections only.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn prepare(&mut self, sql: &str) -> Result<Statement, NoAnswer> {
        tokio::select! {
            biased;
            prepared = self.carried.until(self.client.prepare(sql)) => answered_by(prepared),
            () = self.worker.timer(Instant::now() + self.cancel.timeout()) => {
                Err(NoAnswer::Silent(self.cancel.timeout()))
            }
        }
    }

    /// Runs a prepared statement within the address' `timeout=`; after that it may still be running.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn run(
        &mut self,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, NoAnswer> {
        tokio::select! {
            biased;
            rows = self.carried.until(self.client.query(statement, params)) => answered_by(rows),
            () = self.worker.timer(Instant::now() + self.cancel.timeout()) => {
                Err(NoAnswer::Silent(self.cancel.timeout()))
            }
        }
    }

    /// Like [`Self::ask_within`], with the address' `timeout=`.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn ask(&mut self, sql: &str) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        self.ask_within(sql, self.cancel.timeout()).await
    }
}

async fn answered(
    client: &Client,
    carried: &mut Carried,
    sql: &str,
) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
    answered_by(carried.until(client.simple_query(sql)).await).map(rows)
}
