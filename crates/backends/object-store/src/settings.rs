//! Settings from a URL: the bucket, how to reach it, and the layout of its objects.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{BackendError, BackendErrorKind, ConnectError, Url};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::HttpConnector;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ObjectStore, RetryConfig};

/// The parameters of the URLs.
const PARAMETERS: &[&str] = &["account", "credentials", "endpoint", "layout", "poll_ms", "region"];
/// Bounds of `poll_ms`.
const POLL_MS: std::ops::RangeInclusive<u64> = 10..=60_000;
/// Longest pause between two polls of a waiter, without `poll_ms`.
const POLL_MAX: Duration = Duration::from_secs(2);

/// The kind of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Provider {
    S3,
    Google,
    Azure,
}

impl Provider {
    pub(super) fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }
}

/// What an object of a lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ObjectLayout {
    Own,
    /// The lock object of Terraform and OpenTofu.
    Terraform,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) provider: Provider,
    /// Bucket, or container.
    pub(super) bucket: String,
    /// Of all objects; without slashes at its ends.
    pub(super) prefix: String,
    pub(super) layout: ObjectLayout,
    region: Option<String>,
    account: Option<String>,
    pub(super) endpoint: Option<String>,
    /// Sign nothing, or with the emulators' public key.
    without_credentials: bool,
    /// The longest pause between two polls, if it is given.
    poll: Option<Duration>,
}

impl Settings {
    pub(super) fn parse(url: &Url) -> Result<Self, ConnectError> {
        url.only_parameters(PARAMETERS)?;
        let provider = match url.scheme.as_str() {
            "gs" => Provider::Google,
            "az" => Provider::Azure,
            _ => Provider::S3,
        };
        let bucket = match &url.hosts[..] {
            [bucket] if bucket.port.is_none() && url.user.is_none() => bucket.name.clone(),
            _ => {
                let wanted = "the name of one bucket and a prefix, as in `s3://bucket/locks`; credentials are those of \
                              the environment or of this machine";
                return Err(url.bad_part("", wanted).into());
            }
        };
        let prefix = url.path.trim_matches('/').to_owned();
        if object_store::path::Path::parse(&prefix).is_err() {
            return Err(url.bad_part(prefix, "a prefix of segments with one `/` between them").into());
        }
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
        let layout = match text("layout")?.as_deref() {
            None => ObjectLayout::Own,
            Some("terraform") => ObjectLayout::Terraform,
            Some(other) => {
                return Err(url.bad_part(format!("layout={other}"), "`layout=terraform`").into());
            }
        };
        let poll_ms = url.parameter::<u64>("poll_ms", "a number of milliseconds")?;
        if let Some(ms) = poll_ms.filter(|ms| !POLL_MS.contains(ms)) {
            return Err(url.bad_part(format!("poll_ms={ms}"), "between 10 and 60000 milliseconds").into());
        }
        for (key, of) in [("region", Provider::S3), ("account", Provider::Azure)] {
            if text(key)?.is_some() && provider != of {
                return Err(url
                    .bad_part(key, "left out: `region` is for `s3:`, and `account` for `az:`")
                    .into());
            }
        }
        Ok(Self {
            provider,
            bucket,
            prefix,
            layout,
            region: text("region")?,
            account: text("account")?,
            endpoint: text("endpoint")?,
            without_credentials,
            poll: poll_ms.map(Duration::from_millis),
        })
    }

    /// The longest pause between two polls of a waiter with this ttl; the shortest is half of it.
    pub(super) fn poll(&self, ttl: Duration) -> Duration {
        self.poll.unwrap_or((ttl / 10).min(POLL_MAX))
    }

    /// The address as users know it.
    pub(super) fn shown(&self) -> String {
        format!("{}://{}/{}", self.provider.scheme(), self.bucket, self.prefix)
    }

    /// The client of the store. It never sends a request twice: a repeated put would be refused because of
    /// its own first copy.
    pub(super) fn store(&self, http: impl HttpConnector) -> Result<Arc<dyn ObjectStore>, BackendError> {
        let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let is_plain = self.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let built: Result<Arc<dyn ObjectStore>, object_store::Error> = match self.provider {
            Provider::S3 => {
                let mut builder = AmazonS3Builder::from_env().with_bucket_name(&self.bucket);
                // Deletes are of single objects, and as other programs send them.
                builder = builder.with_disable_bulk_delete(true);
                if let Some(region) = &self.region {
                    builder = builder.with_region(region);
                }
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_endpoint(endpoint).with_allow_http(is_plain);
                }
                if self.without_credentials {
                    builder = builder.with_skip_signature(true);
                }
                builder.with_retry(once).with_http_connector(http).build().map(|store| Arc::new(store) as _)
            }
            Provider::Google => {
                let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&self.bucket);
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_base_url(endpoint);
                }
                if self.without_credentials {
                    builder = builder.with_skip_signature(true);
                }
                builder.with_retry(once).with_http_connector(http).build().map(|store| Arc::new(store) as _)
            }
            Provider::Azure => {
                let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(&self.bucket);
                if self.without_credentials {
                    builder = builder.with_account(EMULATOR.0).with_access_key(EMULATOR.1);
                }
                if let Some(account) = &self.account {
                    builder = builder.with_account(account);
                }
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_endpoint(endpoint.clone()).with_allow_http(is_plain);
                }
                builder.with_retry(once).with_http_connector(http).build().map(|store| Arc::new(store) as _)
            }
        };
        built.map_err(|error| {
            let what = format!("{} can't be used: {error}", self.shown());
            BackendError::new(BackendErrorKind::Refused, what)
        })
    }
}

/// The account and the key that every emulator of Azure has. The key is no secret: the emulators' manual
/// contains it.
const EMULATOR: (&str, &str) = (
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        let url = Url::parse(text, &["s3", "gs", "az"]).map_err(|error| error.to_string())?;
        Settings::parse(&url).map_err(|error| error.to_string())
    }

    #[test]
    fn bucket_and_prefix_are_split_and_wrong_parts_are_named() {
        let settings = parse("s3://my.bucket-1/a/b/?region=eu-central-1").unwrap();
        assert_eq!((settings.bucket.as_str(), settings.prefix.as_str()), ("my.bucket-1", "a/b"));
        assert_eq!(parse("az://locks").unwrap().prefix, "");
        for (url, part) in [
            ("s3://bucket:80/a", "one bucket"),
            ("s3://one,two/a", "one bucket"),
            ("s3://key:secret@bucket/a", "credentials are those of"),
            ("gs://bucket?region=x", "`region` is for `s3:`"),
            ("s3://bucket?account=x", "`account` for `az:`"),
            ("s3://bucket?layout=tofu", "layout=terraform"),
            ("s3://bucket?poll_ms=1", "between 10 and 60000"),
            ("s3://bucket/a/../b", "segments"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(error.contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn polls_are_a_twentieth_of_the_ttl_to_2_s_apart() {
        let poll = |url: &str, seconds| parse(url).unwrap().poll(Duration::from_secs(seconds));
        assert_eq!(poll("s3://b", 10), Duration::from_secs(1));
        assert_eq!(poll("s3://b", 3600), Duration::from_secs(2));
        assert_eq!(poll("s3://b?poll_ms=500", 3600), Duration::from_millis(500));
    }
}
