//! A connection that whoever needs it drives: no task reads and writes for it, so that a statement crosses to no other task
//! or thread and back.
//!
//! Its limits of time are kept on the backend's thread only (`Worker::timer`). Who uses one elsewhere hands it to that
//! thread if it takes long.

use std::time::{Duration, Instant};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Notification, Row, SimpleQueryRow, Statement};

use super::answer::{NoAnswer, answered_by, rows};
use super::cancel::Cancel;
use super::carried::Carried;
use crate::worker::Worker;

/// A connection for one user at a time. Dropping it ends it.
pub(super) struct Line {
    // Dropped first, which lets the other half say good-bye.
    client: Client,
    carried: Carried,
    cancel: Cancel,
    worker: Worker,
}

impl Line {
    pub(super) fn new(client: Client, carried: Carried, cancel: Cancel, worker: Worker) -> Self {
        Self { client, carried, cancel, worker }
    }

    /// `host:port`, for people.
    pub(super) fn server(&self) -> &str {
        self.cancel.server()
    }

    /// What asks the server to give up the statement that is under way. Whether it did shows in the statement's answer; a
    /// request that is late may hit the next statement.
    pub(super) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Whether it has not ended, as far as that shows without waiting. Needs no runtime.
    pub(super) fn look(&mut self) -> bool {
        self.carried.look()
    }

    /// As if nothing had been notified until now.
    pub(super) fn forget_notices(&mut self) {
        self.carried.forget_notices();
    }

    /// Waits for what is notified.
    ///
    /// # Errors
    /// Why the connection ended.
    pub(super) async fn notices(&mut self) -> Result<Vec<Notification>, String> {
        self.carried.notices().await
    }

    /// Runs statements in the simple protocol, which every pooler understands, and returns the rows of all. They wait
    /// for as long as they like. Cancel-safe: they go on, and the next ones wait behind them.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn wait_for(&mut self, sql: &str) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        answered(&self.client, &mut self.carried, sql).await
    }

    /// As [`Self::wait_for`], for at most `limit`, whatever becomes of the statement then.
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

    /// Prepares a statement, where no pooler lies between, within the address' `timeout=`.
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

    /// Runs what was prepared, within the address' `timeout=`, whatever becomes of it then.
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

    /// As [`Self::ask_within`], within the address' `timeout=`.
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
