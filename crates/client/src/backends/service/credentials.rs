//! How a client authenticates to the nodes: by its certificate or by a token.

use std::sync::Arc;

use lockkeeper_backend::grpc::GrpcTls;
use lockkeeper_backend::{BackendError, BackendErrorKind, ConnectError, Rotated, Url, read_begin};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// The URL scheme with TLS, and the error's hint if TLS files are given with the plain scheme.
const TLS_SCHEME: &str = "lockkeepers";
const WITHOUT_TLS: &str = "of use without TLS: write `lockkeepers://`";
const TOKEN_FILE: &str = "token-file";
const TOKEN_ENV: &str = "token-env";
/// The largest token file that is read, in bytes.
const TOKEN_BYTES_MAX: usize = 4 << 10;

/// The URL parameters in addition to those of TLS.
pub(super) const PARAMETERS: [&str; 2] = [TOKEN_FILE, TOKEN_ENV];

/// TLS and the token of a client, for connections to all nodes.
#[derive(Clone, Default)]
pub(super) struct Credentials {
    /// `None` for `lockkeeper://`.
    pub(super) tls: Option<GrpcTls>,
    token: Option<Arc<Token>>,
}

/// A token and its source.
struct Token {
    file: Option<String>,
    current: Rotated<MetadataValue<Ascii>>,
}

impl Credentials {
    /// The credentials in a URL.
    ///
    /// # Errors
    /// A file or variable is missing or can't be used, a parameter does not fit the scheme, or the
    /// certificate has ended or is not valid yet.
    pub(super) fn of(url: &Url) -> Result<Self, ConnectError> {
        let tls = GrpcTls::of(url, TLS_SCHEME, "service-tls", WITHOUT_TLS)?;
        let file: Option<String> = url.parameter(TOKEN_FILE, "the path of a file")?;
        let variable: Option<String> = url.parameter(TOKEN_ENV, "the name of an environment variable")?;
        let token = match (file, variable) {
            (None, None) => None,
            (Some(file), None) => {
                let current = Rotated::new(read(&file)?);
                Some(Token { file: Some(file), current })
            }
            (None, Some(variable)) => {
                let text = std::env::var(&variable)
                    .map_err(|_| url.bad_part(format!("{TOKEN_ENV}={variable}"), "a variable that is set"))?;
                let current = Rotated::new(header(&text, &format!("the variable `{variable}`"))?);
                Some(Token { file: None, current })
            }
            (Some(_), Some(_)) => {
                return Err(url.bad_part(TOKEN_ENV, "of use beside `token-file`: give one of them").into());
            }
        };
        let credentials = Self { tls, token: token.map(Arc::new) };
        match credentials.fault() {
            Some(fault) => Err(BackendError::new(BackendErrorKind::Denied, fault).into()),
            None => Ok(credentials),
        }
    }

    /// Why no node accepts this client's certificate at present; `None` if it is valid, or there is none.
    pub(super) fn fault(&self) -> Option<String> {
        self.tls.as_ref().and_then(GrpcTls::certificate_fault)
    }

    /// The token for the calls of a new connection. Its file is read again.
    pub(super) fn bearer(&self) -> Bearer {
        Bearer(self.token.as_ref().map(|token| {
            token
                .current
                .latest("token", |current| token.file.as_deref().map_or_else(|| Ok(current.clone()), read))
        }))
    }
}

fn read(file: &str) -> Result<MetadataValue<Ascii>, BackendError> {
    let text = read_begin(file, TOKEN_BYTES_MAX).map_err(|error| {
        let what = format!("`{file}` can't be read: {error}; name a file with a token");
        BackendError::caused(BackendErrorKind::Operator, what, error)
    })?;
    header(&text, &format!("`{file}`"))
}

/// The header with a token. Errors do not contain the token.
fn header(text: &str, source: &str) -> Result<MetadataValue<Ascii>, BackendError> {
    let text = text.trim();
    let value = (!text.is_empty() && text.len() <= TOKEN_BYTES_MAX)
        .then(|| MetadataValue::try_from(format!("Bearer {text}")).ok())
        .flatten();
    let mut value = value.ok_or_else(|| {
        let what = format!("{source} has no token: one line as `lockkeeper token add` prints it is wanted");
        BackendError::new(BackendErrorKind::Operator, what)
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Adds the token to each call.
#[derive(Clone)]
pub(super) struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}
