//! A table of one row in a PostgreSQL database, guarded by the fence in the database's `lockkeeper_fence`
//! schema.

use lockkeeper_fence::Section;
use lockkeeper_fence::postgres::PostgresError;
use lockkeeper_fence::postgres::tokio_postgres as fence;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::LedgerError;
use crate::commands::fence::LIMIT;
use crate::commands::fence::postgres::{connect, failed};
use crate::exit::{Failure, UNAVAILABLE, chain};
use crate::output;

pub(in super::super) struct PostgresLedger {
    url: String,
    name: String,
    fenced: bool,
    /// `None` after a failure: the next operation reconnects.
    client: Option<Client>,
}

impl PostgresLedger {
    pub(super) async fn open(url: &str, name: &str, fenced: bool) -> Result<Self, Failure> {
        let client = connect(url).await?;
        if fenced {
            fence::check(&client).await.map_err(|error| failed(&error))?;
        }
        Ok(Self { url: url.to_owned(), name: name.to_owned(), fenced, client: Some(client) })
    }

    /// The quoted table name. The name is generated here, so no character in it needs escaping.
    fn table(&self) -> String {
        format!("\"{}\"", self.name)
    }

    pub(super) async fn create(&mut self) -> Result<(), Failure> {
        let table = self.table();
        let make = format!(
            "BEGIN; CREATE TABLE {table} (ledger text NOT NULL); INSERT INTO {table} VALUES (''); COMMIT"
        );
        self.run(&make).await.map_err(|trouble| self.failed("make", trouble))
    }

    pub(super) async fn enter(&mut self, section: Section) -> Result<(), LedgerError> {
        let name = self.name.clone();
        let entered = within(fence::enter(self.client().await?, &name, section)).await;
        self.told(entered)
    }

    pub(super) async fn read(&mut self) -> Result<String, LedgerError> {
        let ask = format!("SELECT ledger FROM {}", self.table());
        let row = within(self.client().await?.query_one(&ask, &[])).await;
        self.told(row.and_then(|row| row.try_get(0).map_err(LedgerError::from)))
    }

    pub(super) async fn write(&mut self, section: Option<Section>, ledger: &str) -> Result<(), LedgerError> {
        let (name, table) = (self.name.clone(), self.table());
        let client = self.client().await?;
        let written = async {
            let transaction = client.transaction().await?;
            if let Some(section) = section {
                fence::write(&transaction, &name, section).await?;
            }
            transaction.execute(&format!("UPDATE {table} SET ledger = $1"), &[&ledger]).await?;
            Ok::<_, LedgerError>(transaction.commit().await?)
        };
        let written = within(written).await;
        self.told(written)
    }

    pub(super) fn location(&self) -> String {
        format!("the table {}", self.table())
    }

    pub(super) async fn remove(&mut self) -> Result<(), Failure> {
        let drop = format!("DROP TABLE IF EXISTS {}", self.table());
        self.run(&drop).await.map_err(|trouble| self.failed("remove", trouble))?;
        if !self.fenced {
            return Ok(());
        }
        let name = self.name.clone();
        let forget = "DELETE FROM lockkeeper_fence.marks WHERE resource = $1";
        let forgot = match self.client().await {
            Ok(client) => timeout(LIMIT, client.execute(forget, &[&name])).await,
            Err(trouble) => return Err(self.failed("remove", trouble)),
        };
        let Ok(forgot) = forgot else { return Err(self.failed("remove", silent())) };
        match forgot {
            Ok(_) => Ok(()),
            // Users of a fence may not lower its marks, so they can't delete them; only the owner can.
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                output::say(format_args!(
                    "the marks of `{name}` stay in lockkeeper_fence.marks: this role may not remove them"
                ));
                Ok(())
            }
            Err(error) => Err(self.failed("remove", error.into())),
        }
    }

    async fn run(&mut self, sql: &str) -> Result<(), LedgerError> {
        let done = within(self.client().await?.batch_execute(sql)).await;
        self.told(done)
    }

    async fn client(&mut self) -> Result<&mut Client, LedgerError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => connect(&self.url).await.map_err(|failure| LedgerError::Failed(failure.message))?,
        };
        Ok(self.client.insert(client))
    }

    /// Drops the connection after an error that is no refusal by the fence.
    fn told<T, E: Into<LedgerError>>(&mut self, result: Result<T, E>) -> Result<T, LedgerError> {
        let result = result.map_err(Into::into);
        if let Err(LedgerError::Failed(_)) = result {
            self.client = None;
        }
        result
    }

    fn failed(&self, doing: &str, trouble: LedgerError) -> Failure {
        Failure::new(UNAVAILABLE, format!("cannot {doing} {}: {}", self.location(), trouble.why()))
    }
}

impl From<tokio_postgres::Error> for LedgerError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Failed(chain(&error))
    }
}

impl From<PostgresError> for LedgerError {
    fn from(error: PostgresError) -> Self {
        match error {
            PostgresError::Refused(refused) => refused.into(),
            other => Self::failed(&other),
        }
    }
}

/// Applies the time limit: an unresponsive database must not delay the end of the program.
async fn within<T, E: Into<LedgerError>>(call: impl Future<Output = Result<T, E>>) -> Result<T, LedgerError> {
    match timeout(LIMIT, call).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(silent()),
    }
}

fn silent() -> LedgerError {
    LedgerError::Failed(format!("the database has not answered for {LIMIT:?}"))
}
