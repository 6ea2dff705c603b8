//! One client of AWS's SDK for each runtime, and the classification of the SDK's errors (P12).

use std::fmt::Debug;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::default_provider::region::DefaultRegionChain;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::future;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_dynamodb::config::{
    ConfigBag, Credentials, Intercept, ProvideCredentials, RuntimeComponents, SharedHttpClient,
};
use aws_sdk_dynamodb::error::{BoxError, ProvideErrorMetadata, SdkError};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::{Connector, tls};
use aws_smithy_types::body::SdkBody;
use http_body_util::Limited;
use lockkeeper_backend::io::{Connect, LeaseThread, Pool, PoolLimits, Used};
use lockkeeper_backend::leased::StoreFailure;
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, CallError};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::settings::Settings;

/// Each runtime has one client, with connections of its own, dropped after a minute without use.
const LIMITS: PoolLimits = PoolLimits { shared_each: 1, total: 256, idle: Duration::from_secs(60) };
/// Time limit for resolving region and credentials.
const CONFIGURE: Duration = Duration::from_secs(10);
/// Credentials without an expiry count as expired after this time, less a margin of 10 s that AWS's library
/// subtracts. So when another program replaces credentials, they are read again within the ttl of a hold of
/// 30 s.
const CREDENTIALS_LIFE: Duration = Duration::from_secs(20);
/// The codes of errors about this client's identity and permissions.
const DENIED: [&str; 7] = [
    "AccessDeniedException",
    "IncompleteSignatureException",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "NotAuthorized",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];
/// The codes of errors after which DynamoDB has done nothing, and a later try may succeed.
const BUSY: [&str; 6] = [
    // New credentials may arrive soon.
    "ExpiredTokenException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
    "TransactionConflictException",
];

/// Longest pause after the first error in [`BUSY`]; half of it on average. Also the first backoff of the
/// SDK's own retries: with the SDK's default of one second, a call would time out before it returns the
/// refusal.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Largest response. A page of a scan has at most 1 MiB of items, and small items take several times as much
/// in JSON; two items have at most 800 KiB.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Why a call has no usable answer.
pub(super) type DynamoFailure = StoreFailure<UnmetCondition>;

/// The condition of a write was not met.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnmetCondition;

/// The clients for one table.
pub(super) struct DynamoClients {
    pool: Pool<ClientFactory>,
    pub(super) table: String,
    trouble: Mutex<Option<BackendError>>,
}

struct ClientFactory(SdkConfig);

impl Connect for ClientFactory {
    type Connection = Client;

    fn connect(&self) -> BoxFuture<'static, Result<Client, BackendError>> {
        Box::pin(std::future::ready(client(&self.0)))
    }

    fn is_usable(&self, _: &Client) -> bool {
        true
    }
}

/// A client with connections of its own.
pub(super) fn client(config: &SdkConfig) -> Result<Client, BackendError> {
    let http_client = http_client()?;
    let config = aws_sdk_dynamodb::config::Builder::from(config);
    Ok(Client::from_conf(config.http_client(http_client).interceptor(AnswerLimit).build()))
}

/// Rejects responses above [`ANSWER_BYTES_MAX`]: the SDK itself has no limit.
#[derive(Debug)]
struct AnswerLimit;

impl Intercept for AnswerLimit {
    fn name(&self) -> &'static str {
        "AnswerLimit"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let answer = context.response_mut();
        *answer.body_mut() = SdkBody::from_body_1_x(Limited::new(answer.take_body(), ANSWER_BYTES_MAX));
        Ok(())
    }
}

/// An HTTP client with the program's TLS library and the proxy of `HTTPS_PROXY`. Emulators without TLS and
/// the addresses that give machines their credentials are reached directly.
fn http_client() -> Result<SharedHttpClient, BackendError> {
    let variable = |names: [&str; 2]| names.iter().find_map(|name| std::env::var(name).ok());
    let proxy = variable(["HTTPS_PROXY", "https_proxy"]).filter(|proxy| !proxy.is_empty());
    let excepted = variable(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    let proxy = match &proxy {
        Some(proxy) => {
            ProxyConfig::https(proxy.as_str()).map(|proxy| proxy.no_proxy(excepted)).map_err(|error| {
                let what = format!("HTTPS_PROXY can't be used: {error}; write `http://host:port`");
                BackendError::new(BackendErrorKind::Refused, what)
            })?
        }
        None => ProxyConfig::disabled(),
    };
    Ok(aws_smithy_http_client::Builder::new().build_with_connector_fn(move |settings, components| {
        let mut builder = Connector::builder().proxy_config(proxy.clone());
        builder.set_connector_settings(settings.cloned());
        builder.set_sleep_impl(components.and_then(|components| components.sleep_impl()));
        builder.tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring)).build()
    }))
}

/// The settings of AWS's tools: environment, profile, roles; without contacting DynamoDB.
pub(super) async fn configure(settings: &Settings) -> Result<SdkConfig, BackendError> {
    let http_client = http_client()?;
    let repeats = RetryConfig::standard().with_initial_backoff(BUSY_PAUSE);
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http_client.clone())
        .retry_config(repeats);
    if let Some(region) = &settings.region {
        loader = loader.region(Region::new(region.clone()));
    }
    if let Some(endpoint) = &settings.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    loader = match settings.without_credentials {
        true => loader.credentials_provider(Credentials::new("none", "none", None, None, "lockkeeper")),
        false => {
            let region = settings.region.clone().map(Region::new);
            loader.credentials_provider(FreshCredentials { http_client, region })
        }
    };
    let hint = "set them in the environment or a profile, or give this machine a role";
    let config = async {
        let config = loader.load().await;
        match config.credentials_provider() {
            Some(provider) => {
                provider.provide_credentials().await.map(|_| config).map_err(|error| cause(&error))
            }
            None => Err("no source is known".to_owned()),
        }
    };
    let config =
        timeout(CONFIGURE, config).await.unwrap_or_else(|_| Err(format!("not within {CONFIGURE:?}")));
    let config = config.map_err(|why| {
        let what = format!("there are no AWS credentials ({why}); {hint}");
        BackendError::new(BackendErrorKind::Denied, what)
    })?;
    if config.region().is_none() {
        let what = "no AWS region: add `?region=eu-central-1` to the URL, or set AWS_REGION";
        return Err(BackendError::new(BackendErrorKind::Refused, what));
    }
    Ok(config)
}

/// The credentials of AWS's tools, resolved again whenever they may have changed: the programs that rewrite a
/// profile's file, or that a profile calls, do not always give an expiry.
#[derive(Debug)]
struct FreshCredentials {
    http_client: SharedHttpClient,
    /// `None`: the region of AWS's tools.
    region: Option<Region>,
}

impl ProvideCredentials for FreshCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            let configured = ProviderConfig::without_region().with_http_client(self.http_client.clone());
            let region = match &self.region {
                Some(region) => Some(region.clone()),
                None => DefaultRegionChain::builder().build().region().await,
            };
            let chain =
                DefaultCredentialsChain::builder().configure(configured.with_region(region)).build().await;
            let mut found = chain.provide_credentials().await?;
            if found.expiry().is_none() {
                *found.expiry_mut() = SystemTime::now().checked_add(CREDENTIALS_LIFE);
            }
            Ok(found)
        })
    }
}

impl DynamoClients {
    pub(super) fn new(config: SdkConfig, table: &str, lease_thread: &LeaseThread) -> Self {
        let pool = Pool::new(ClientFactory(config), LIMITS, lease_thread);
        Self { pool, table: table.to_owned(), trouble: Mutex::default() }
    }

    /// The client of the current runtime.
    pub(super) async fn client(&self) -> Used<impl Connect<Connection = Client> + use<>> {
        self.pool.shared().await
    }

    /// Why the last call had no answer; `None` if it had one.
    pub(super) fn trouble(&self) -> Option<BackendError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a call's answer.
    pub(super) async fn by<T, E>(
        &self,
        deadline: Instant,
        call: impl Future<Output = Result<T, SdkError<E>>>,
    ) -> Result<T, DynamoFailure>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let answer = timeout_at(deadline, call).await.map_err(|_| DynamoFailure::IN_DOUBT)?;
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) =
            answer.as_ref().err().and_then(unreachable);
        answer.map_err(|error| failure(&error))
    }

    /// As [`Self::by`], but repeats the call until the deadline while DynamoDB returns an error in [`BUSY`].
    pub(super) async fn patiently<T, E, F>(
        &self,
        deadline: Instant,
        send: impl Fn() -> F,
    ) -> Result<T, DynamoFailure>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let mut pause = BUSY_PAUSE;
        loop {
            match self.by(deadline, send()).await {
                Err(DynamoFailure::Silent(CallError { sent: false, .. }))
                    if Instant::now() + pause < deadline =>
                {
                    sleep(pause.mul_f64(fastrand::f64())).await;
                    pause *= 2;
                }
                answer => return answer,
            }
        }
    }
}

/// Classifies an error.
fn failure<E>(error: &SdkError<E>) -> DynamoFailure
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let refused = |kind, what: String| DynamoFailure::Refused(BackendError::new(kind, what));
    let service = match error {
        // Before anything is sent.
        SdkError::ConstructionFailure(_) => return refused(BackendErrorKind::Denied, cause(error)),
        SdkError::ServiceError(service) => service,
        _ => return DynamoFailure::IN_DOUBT,
    };
    let (code, text) =
        (service.err().code().unwrap_or_default(), service.err().message().unwrap_or_default());
    let told = format!("DynamoDB refuses: {code}: {text}");
    match code {
        "ConditionalCheckFailedException" => DynamoFailure::Answered(UnmetCondition),
        code if BUSY.contains(&code) => DynamoFailure::passing(told),
        code if DENIED.contains(&code) => refused(BackendErrorKind::Denied, told),
        "ResourceNotFoundException" => {
            refused(BackendErrorKind::Operator, format!("{told} (the table, in this region)"))
        }
        // The transaction is still under way, or DynamoDB itself has failed.
        _ if service.raw().status().is_server_error() || code == "TransactionInProgressException" => {
            DynamoFailure::passing(told).in_doubt()
        }
        _ => refused(BackendErrorKind::Refused, told),
    }
}

/// The error of a call that did not get an answer.
fn unreachable<E: std::error::Error + 'static>(error: &SdkError<E>) -> Option<BackendError> {
    match error {
        SdkError::ServiceError(_) => None,
        _ => {
            let what = format!("DynamoDB does not answer ({})", cause(error));
            Some(BackendError::new(BackendErrorKind::Unreachable, what))
        }
    }
}

/// The innermost cause, which is the most specific one.
fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
