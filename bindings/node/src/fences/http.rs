//! The HTTP fence, for servers of JavaScript.

use http::{Request, Response};
use lockkeeper_bindings::fences::{Admission, ServerFence, admit, http_fence};
use lockkeeper_fence::http::{Fenced, Pass, WAIT_DEFAULT};
use napi_derive::napi;
use serde_json::json;

use crate::bridge::{Bridge, CallAnswer};
use crate::errors::throw;
use crate::options::milliseconds;

/// A fence with its file of marks.
#[napi(js_name = "HttpFence")]
pub struct NativeHttpFence(ServerFence);

#[napi]
impl NativeHttpFence {
    /// Opens the marks in a file, which is created if it does not exist. `wait`: how long a request waits for
    /// those with lower tokens, in milliseconds.
    #[napi(constructor)]
    pub fn new(path: String, wait: Option<f64>) -> napi::Result<Self> {
        let wait = wait.map_or(Ok(WAIT_DEFAULT), |wait| milliseconds("wait", wait)).map_err(throw)?;
        http_fence(path.as_ref(), wait).map(Self).map_err(throw)
    }
}

/// A request that was let through, until its handler has ended.
#[napi]
pub struct HttpPass {
    pass: Option<Pass>,
    fenced: Fenced,
}

#[napi]
impl HttpPass {
    #[napi(getter)]
    pub fn action(&self) -> String {
        self.fenced.action.to_string()
    }

    #[napi]
    pub fn end(&mut self) {
        self.pass = None;
    }
}

#[napi]
impl Bridge {
    /// Checks a request: a pass; `null` if it has no token and needs none; or the response.
    #[napi]
    #[allow(clippy::too_many_arguments, reason = "the parts of a request")]
    pub fn http_pass(
        &self,
        call: u32,
        fence: &NativeHttpFence,
        method: String,
        url: String,
        headers: Vec<(String, String)>,
        needs_token: Option<bool>,
        resource: Option<String>,
    ) -> napi::Result<()> {
        let fence = fence.0.clone();
        let mut request = Request::builder().method(method.as_str()).uri(url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(()).map_err(|error| napi::Error::from_reason(error.to_string()))?;
        self.begin(call, async move {
            Ok(match admit(&fence, request, needs_token, resource).await {
                Admission::Free => CallAnswer::Null,
                Admission::Passed(pass, fenced) => CallAnswer::object(HttpPass { pass: Some(pass), fenced }),
                Admission::Answered(response) => shown(&response),
            })
        });
        Ok(())
    }
}

fn shown(response: &Response<Vec<u8>>) -> CallAnswer {
    let headers = response.headers().iter();
    let headers = headers.map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())));
    CallAnswer::Json(json!({
        "status": response.status().as_u16(),
        "headers": headers.collect::<std::collections::BTreeMap<_, _>>(),
        "body": String::from_utf8_lossy(response.body()),
    }))
}
