//! `run --once-key`: the record that a command was done.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use lockkeeper::once::{FileRecords, KEY_BYTES_MAX, OnceRecord, OnceStore};
use lockkeeper::url::Url;
use serde_json::{Value, json};

use crate::args::Run;
use crate::exit::{Failure, UNAVAILABLE, USAGE, chain};
use crate::settings;

/// The number of tries to write a record, and the pause between them. Without the record the command would be
/// run again.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// The record of a command that is run once.
pub(super) struct CommandRecord {
    key: String,
    store: StoreUrl,
}

/// Where records are. Each call opens a connection of its own, since commands can take long.
enum StoreUrl {
    File(PathBuf),
    #[cfg(feature = "postgres")]
    Postgres(String),
    #[cfg(feature = "redis")]
    Redis(Url),
    #[cfg(feature = "dynamodb")]
    DynamoDb(String),
}

const KNOWN: &[&str] = &[
    "file:///dir",
    #[cfg(feature = "postgres")]
    "postgres://host:port/database",
    #[cfg(feature = "redis")]
    "redis://host:port/database",
    #[cfg(feature = "dynamodb")]
    "dynamodb://table",
];

impl CommandRecord {
    /// The record of `--once-key`: in the store of `--records`, otherwise in the directory of the locks.
    ///
    /// # Errors
    /// The key is invalid, or there is no store.
    pub(super) fn of(args: &Run, locks_url: &str) -> Result<Option<Self>, Failure> {
        let Some(key) = &args.once_key else { return Ok(None) };
        let bytes = key.len();
        if !(1..=KEY_BYTES_MAX).contains(&bytes) {
            let text = format!("the --once-key has {bytes} bytes; 1 to {KEY_BYTES_MAX} are allowed");
            return Err(Failure::new(USAGE, text));
        }
        let url = args.records.as_deref().unwrap_or(locks_url);
        let parsed: Url =
            url.parse().map_err(|error| Failure::new(USAGE, format!("--records: {}", chain(&error))))?;
        let store = match parsed.scheme.as_str() {
            "file" => {
                let directory = PathBuf::from(&parsed.path);
                if !parsed.hosts.is_empty() || !directory.is_absolute() {
                    let text = format!("`{parsed}` names no directory of this host; write `file:///dir`");
                    return Err(Failure::new(USAGE, text));
                }
                StoreUrl::File(directory.join("once"))
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" if args.records.is_some() => StoreUrl::Postgres(url.to_owned()),
            #[cfg(feature = "redis")]
            "redis" if args.records.is_some() => StoreUrl::Redis(parsed),
            #[cfg(feature = "dynamodb")]
            "dynamodb" if args.records.is_some() => StoreUrl::DynamoDb(url.to_owned()),
            #[cfg(not(feature = "dynamodb"))]
            "dynamodb" if args.records.is_some() => {
                return Err(Failure::not_compiled_in("dynamodb", "dynamodb"));
            }
            scheme => {
                let text = match &args.records {
                    Some(_) => format!("`{scheme}:` is no store of records"),
                    None => "--once-key needs a store for its records: add `--records URL`".to_owned(),
                };
                return Err(Failure::new(USAGE, format!("{text}; known: {}", KNOWN.join(", "))));
            }
        };
        Ok(Some(Self { key: key.clone(), store }))
    }

    /// Who ran the command before, if that is recorded.
    ///
    /// # Errors
    /// The store can't be read.
    pub(super) async fn done_by(&self) -> Result<Option<String>, Failure> {
        Ok(self.call(None).await?.map(|record| shown(&record)))
    }

    /// Records that the command was done. Returns the earlier record, if there is one.
    ///
    /// # Errors
    /// The record could not be written.
    pub(super) async fn put(&self, by: &str) -> Result<Option<String>, Failure> {
        let at = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let record = OnceRecord::new(json!({ "by": by, "at": at }).to_string().into_bytes());
        let mut tries = 1;
        loop {
            match self.call(Some(&record)).await {
                Ok(stored) => {
                    return Ok(stored.filter(|it| it.attempt != record.attempt).map(|it| shown(&it)));
                }
                Err(failure) if tries == TRIES => {
                    let text = format!(
                        "the command was done, but `{}` is not recorded, and it would run again: {}",
                        self.key, failure.message
                    );
                    return Err(Failure::new(failure.code, text));
                }
                Err(_) => tries += 1,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Stores `new`, if given, unless the key has a record. Returns the key's record.
    async fn call(&self, new: Option<&OnceRecord>) -> Result<Option<OnceRecord>, Failure> {
        match &self.store {
            StoreUrl::File(directory) => self.call_on(&FileRecords::new(directory), new).await,
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => {
                let client = crate::commands::fence::postgres::connect(url).await?;
                let client = std::sync::Arc::new(client);
                let records = lockkeeper::once::PostgresRecords::new(client.clone());
                self.within_limit(prepare(&client, &records)).await?;
                self.call_on(&records, new).await
            }
            #[cfg(feature = "redis")]
            StoreUrl::Redis(url) => {
                let connection = lockkeeper::backends::RedisConnection::connect(url, LIMIT).await?;
                self.call_on(&lockkeeper::once::RedisRecords::new(connection), new).await
            }
            #[cfg(feature = "dynamodb")]
            StoreUrl::DynamoDb(url) => {
                let records = lockkeeper::once::DynamoDbRecords::connect(url).await?;
                self.call_on(&records, new).await
            }
        }
    }

    async fn call_on<S: OnceStore>(
        &self,
        store: &S,
        new: Option<&OnceRecord>,
    ) -> Result<Option<OnceRecord>, Failure> {
        let called = async {
            match new {
                Some(record) => store.put(&self.key, record).await.map(Some),
                None => store.get(&self.key).await,
            }
        };
        self.within_limit(called).await
    }

    async fn within_limit<T, E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(LIMIT, call).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(self.failed(&*error.into())),
            Err(_) => {
                let text = format!("the record of `{}` got no answer within {LIMIT:?}", self.key);
                Err(Failure::new(UNAVAILABLE, text))
            }
        }
    }

    fn failed(&self, error: &(dyn std::error::Error + 'static)) -> Failure {
        Failure::new(UNAVAILABLE, format!("the record of `{}`: {}", self.key, chain(error)))
    }
}

/// Creates the table of the records if it is missing, which needs that permission.
#[cfg(feature = "postgres")]
async fn prepare(
    client: &tokio_postgres::Client,
    records: &lockkeeper::once::PostgresRecords,
) -> Result<(), tokio_postgres::Error> {
    let exists = "SELECT to_regclass('lockkeeper_once') IS NOT NULL";
    if client.query_one(exists, &[]).await?.get(0) {
        return Ok(());
    }
    match records.install().await {
        // Another process creates the table at the same time.
        Err(_) if client.query_one(exists, &[]).await?.get(0) => Ok(()),
        installed => installed,
    }
}

/// Time limit of one call.
const LIMIT: Duration = Duration::from_secs(5);

/// The text for a record: who wrote it and when; for a record of another program, only that it exists.
fn shown(record: &OnceRecord) -> String {
    let outcome: Value = serde_json::from_slice(&record.outcome).unwrap_or_default();
    match (outcome["at"].as_str(), outcome["by"].as_str()) {
        (Some(at), Some(by)) => format!("at {at} by {by}"),
        _ => "by another program".to_owned(),
    }
}

/// Who has done a command, for its record.
pub(super) fn by(args: &Run) -> String {
    args.job.label.clone().unwrap_or_else(|| settings::label(&super::program(&args.command.argv)))
}
