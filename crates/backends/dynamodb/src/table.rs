//! The table: its checks and its creation.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription,
    TableStatus, TimeToLiveStatus,
};
use lockkeeper_backend::io::{LeaseThread, SharedLeaseThread};
use lockkeeper_backend::{BackendError, BackendErrorKind, CallError, ConnectError, Url, UrlError};
use tokio::time::{Instant, sleep};

use super::connection::{self, DynamoClients, DynamoFailure, configure};
use super::items::{Attributes, TOKEN};
use super::settings::Settings;

/// Time limit of one call.
const LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a new table to become active, and the polling interval.
const CREATION: (Duration, Duration) = (Duration::from_secs(120), Duration::from_millis(500));

/// The lease thread of this backend.
pub(super) fn lease_thread() -> Result<LeaseThread, BackendError> {
    static WORKER: SharedLeaseThread = SharedLeaseThread::new();
    WORKER.get("lockkeeper-dynamodb")
}

/// Creates the table of a `dynamodb://` URL, unless it exists, and checks its keys. A new table is billed by
/// request (on demand).
///
/// Needs the permissions `dynamodb:CreateTable` and `dynamodb:DescribeTable`. Returns whether the table was
/// created.
///
/// # Errors
/// The URL is no `dynamodb://` URL, DynamoDB can't be reached or refuses, or an existing table does not suit.
pub async fn init(url: &str) -> Result<bool, ConnectError> {
    let settings = settings(url)?;
    let link = DynamoClients::new(configure(&settings).await?, &settings.table, &lease_thread()?);
    let exists = describe(&link).await?.is_some();
    if !exists {
        create(&link, &settings.attributes).await?;
        let deadline = Instant::now() + CREATION.0;
        while describe(&link).await?.and_then(|table| table.table_status) != Some(TableStatus::Active) {
            if Instant::now() >= deadline {
                let what = format!("the table `{}` is not active after {:?}", link.table, CREATION.0);
                return Err(BackendError::new(BackendErrorKind::Operator, what).into());
            }
            sleep(CREATION.1).await;
        }
    }
    check(&link, &settings.attributes).await?;
    Ok(!exists)
}

/// A client for a `dynamodb://` URL, on the current runtime, with the names of the table and of its partition
/// key.
pub async fn client(url: &str) -> Result<(Client, String, String), ConnectError> {
    let settings = settings(url)?;
    Ok((connection::client(&configure(&settings).await?)?, settings.table, settings.attributes.key))
}

fn settings(url: &str) -> Result<Settings, ConnectError> {
    let url = Url::parse(url, &["dynamodb"])?;
    if url.scheme != "dynamodb" {
        let wanted = "a URL of a table, as `dynamodb://locks?region=eu-central-1`";
        return Err(UrlError::BadPart { part: url.scheme.clone(), url: url.to_string(), wanted }.into());
    }
    Settings::parse(&url)
}

/// Checks that the table can hold locks. A check for which this user lacks the permission is skipped.
pub(super) async fn check(link: &DynamoClients, attributes: &Attributes) -> Result<(), BackendError> {
    let table = match describe(link).await {
        Ok(Some(table)) => table,
        Ok(None) => {
            let what = format!(
                "there is no table `{}` in this region; create it with `lockkeeper dynamodb init`",
                link.table
            );
            return Err(BackendError::new(BackendErrorKind::Operator, what));
        }
        Err(error) if error.kind == BackendErrorKind::Denied && error.message.contains("AccessDenied") => {
            tracing::warn!(%error, "the table's keys and its expiry are not checked");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let keys: Vec<(&str, bool)> = table
        .key_schema()
        .iter()
        .map(|key| (key.attribute_name(), *key.key_type() == KeyType::Hash))
        .collect();
    let mut wanted = vec![(attributes.key.as_str(), true)];
    wanted.extend(attributes.sort.as_ref().map(|(name, _)| (name.as_str(), false)));
    if keys != wanted {
        let shown = |keys: &[(&str, bool)]| -> String {
            let one = |&(name, is_hash): &(&str, bool)| {
                format!("{} `{name}`", if is_hash { "partition key" } else { "sort key" })
            };
            keys.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let what = format!(
            "the table `{}` has {}, and locks need {}: name them by `?key=` and `?sort=NAME:VALUE`, or use another table",
            link.table,
            shown(&keys),
            shown(&wanted)
        );
        return Err(BackendError::new(BackendErrorKind::Refused, what));
    }
    match expiry(link).await {
        Ok(Some(attribute)) if attribute == TOKEN => {
            let what = format!(
                "DynamoDB deletes items of the table `{}` by their attribute `{TOKEN}`, and would delete the tokens of locks: \
                 turn its time to live off, or use another table",
                link.table
            );
            Err(BackendError::new(BackendErrorKind::Refused, what))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind == BackendErrorKind::Denied => {
            tracing::warn!(%error, "the table's expiry is not checked");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn failed(link: &DynamoClients, failure: DynamoFailure) -> BackendError {
    match failure {
        DynamoFailure::Refused(error) => error,
        DynamoFailure::Silent(CallError { refusal: Some(refusal), .. }) => (*refusal).clone(),
        DynamoFailure::Answered(_) | DynamoFailure::Silent(_) => link.trouble().unwrap_or_else(|| {
            let what = format!("DynamoDB did not answer within {LIMIT:?}");
            BackendError::new(BackendErrorKind::Unreachable, what)
        }),
    }
}

/// `None` if there is no such table.
async fn describe(link: &DynamoClients) -> Result<Option<TableDescription>, BackendError> {
    let client = link.client().await;
    let described = async {
        match client.describe_table().table_name(&link.table).send().await {
            Err(error)
                if error.as_service_error().is_some_and(|error| error.is_resource_not_found_exception()) =>
            {
                Ok(None)
            }
            described => described.map(|described| described.table),
        }
    };
    link.by(Instant::now() + LIMIT, described).await.map_err(|failure| failed(link, failure))
}

/// The attribute by which DynamoDB deletes items, if it does.
async fn expiry(link: &DynamoClients) -> Result<Option<String>, BackendError> {
    let client = link.client().await;
    let described = client.describe_time_to_live().table_name(&link.table).send();
    let described =
        link.by(Instant::now() + LIMIT, described).await.map_err(|failure| failed(link, failure))?;
    let is_on = |status: Option<&TimeToLiveStatus>| {
        matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling))
    };
    let described = described.time_to_live_description.filter(|it| is_on(it.time_to_live_status()));
    Ok(described.and_then(|it| it.attribute_name))
}

async fn create(link: &DynamoClients, attributes: &Attributes) -> Result<(), BackendError> {
    let malformed = |error: aws_sdk_dynamodb::error::BuildError| {
        BackendError::new(BackendErrorKind::Refused, format!("the table can't be created: {error}"))
    };
    let client = link.client().await;
    let mut request = client.create_table().table_name(&link.table).billing_mode(BillingMode::PayPerRequest);
    let sort = attributes.sort.as_ref().map(|(name, _)| (name, KeyType::Range));
    for (name, kind) in std::iter::once((&attributes.key, KeyType::Hash)).chain(sort) {
        let definition =
            AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S);
        let key = KeySchemaElement::builder().attribute_name(name).key_type(kind);
        request = request
            .attribute_definitions(definition.build().map_err(malformed)?)
            .key_schema(key.build().map_err(malformed)?);
    }
    link.by(Instant::now() + LIMIT, request.send()).await.map(drop).map_err(|failure| failed(link, failure))
}
