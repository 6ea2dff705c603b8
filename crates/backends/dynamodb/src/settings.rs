//! Settings from a URL: the table, how to reach it, and how its items are named.

use std::time::Duration;

use lockkeeper_backend::{ConnectError, Url};

use super::items::Attributes;

/// The parameters of `dynamodb://`.
const PARAMETERS: &[&str] = &["attributes", "credentials", "endpoint", "key", "poll_ms", "region", "sort"];
/// Mean polling interval of a waiter.
const POLL: Duration = Duration::from_millis(250);
/// Bounds of `poll_ms`.
const POLL_MS: std::ops::RangeInclusive<u64> = 10..=60_000;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) table: String,
    pub(super) region: Option<String>,
    /// The URL to use instead of AWS's endpoint.
    pub(super) endpoint: Option<String>,
    /// Sign requests with a placeholder, for emulators.
    pub(super) without_credentials: bool,
    pub(super) attributes: Attributes,
    pub(super) poll: Duration,
}

impl Settings {
    pub(super) fn parse(url: &Url) -> Result<Self, ConnectError> {
        url.only_parameters(PARAMETERS)?;
        let table = match &url.hosts[..] {
            [] if url.path.starts_with("arn:") => url.path.clone(),
            [table] if table.port.is_none() && matches!(url.path.as_str(), "" | "/") => table.name.clone(),
            _ => {
                return Err(url
                    .bad_part("", "the name of one table, as in `dynamodb://locks?region=eu-central-1`")
                    .into());
            }
        };
        if url.user.is_some() {
            let wanted =
                "part of this address: credentials are those of AWS's tools (environment, profile, role)";
            return Err(url.bad_part("", wanted).into());
        }
        let of_arn = if url.path.starts_with("arn:") { Some(region_of(url)?) } else { None };
        let text = |key| url.parameter::<String>(key, "text");
        let without_credentials = match text("credentials")?.as_deref() {
            None => false,
            Some("none") => true,
            Some(_) => {
                return Err(url
                    .bad_part("credentials", "`credentials=none`, for an emulator at `endpoint=`")
                    .into());
            }
        };
        let mut attributes = match text("attributes")?.as_deref() {
            None | Some("awslabs") => Attributes::awslabs(),
            Some("python") => Attributes::python(),
            Some(other) => {
                let wanted = "`attributes=awslabs` or `attributes=python`";
                return Err(url.bad_part(format!("attributes={other}"), wanted).into());
            }
        };
        if let Some(key) = text("key")? {
            attributes.key = key;
        }
        if let Some(sort) = text("sort")? {
            let Some((name, value)) =
                sort.split_once(':').filter(|(name, value)| !name.is_empty() && !value.is_empty())
            else {
                return Err(url
                    .bad_part(format!("sort={sort}"), "the sort key and its value, as `sort=kind:lock`")
                    .into());
            };
            attributes.sort = Some((name.to_owned(), value.to_owned()));
        }
        let poll_ms = url.parameter::<u64>("poll_ms", "a number of milliseconds")?;
        if let Some(ms) = poll_ms.filter(|ms| !POLL_MS.contains(ms)) {
            return Err(url.bad_part(format!("poll_ms={ms}"), "between 10 and 60000 milliseconds").into());
        }
        let region = text("region")?;
        if let (Some(region), Some(of_arn)) = (&region, &of_arn)
            && region != of_arn
        {
            return Err(url
                .bad_part(format!("region={region}"), "the region in the table's ARN: leave it out")
                .into());
        }
        Ok(Self {
            table,
            region: region.or(of_arn),
            endpoint: text("endpoint")?,
            without_credentials,
            attributes,
            poll: poll_ms.map_or(POLL, Duration::from_millis),
        })
    }
}

/// The region in the ARN of a table.
fn region_of(url: &Url) -> Result<String, ConnectError> {
    let parts: Vec<&str> = url.path.splitn(6, ':').collect();
    match parts[..] {
        ["arn", _, "dynamodb", region, _, table] if !region.is_empty() && table.starts_with("table/") => {
            Ok(region.to_owned())
        }
        _ => {
            let wanted = "the ARN of a table, as `arn:aws:dynamodb:eu-central-1:123456789012:table/locks`";
            Err(url.bad_part(url.path.clone(), wanted).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_may_be_named_by_its_arn() {
        let arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/locks";
        let parse = |text: String| Settings::parse(&text.parse().unwrap()).map_err(|error| error.to_string());
        for url in [format!("dynamodb://{arn}"), format!("dynamodb:{arn}?region=eu-central-1")] {
            let settings = parse(url).unwrap();
            assert_eq!((settings.table.as_str(), settings.region.as_deref()), (arn, Some("eu-central-1")));
        }
        assert!(parse(format!("dynamodb://{arn}?region=us-east-1")).unwrap_err().contains("leave it out"));
        assert!(parse("dynamodb://arn:aws:s3:::bucket".to_owned()).unwrap_err().contains("table/locks"));
    }
}
