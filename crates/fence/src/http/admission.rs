//! The fence's part of a request, in three steps: its headers, admission to the resource, and the durable
//! marks.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};

use super::headers::{self, RESOURCE, TOKEN, shown};
use super::passage::Pass;
use super::problem::Problem;
use super::{Fenced, HttpFence, Settings, is_read};
use crate::resource::Resource;
use crate::rule::{Action, Marks};
use crate::store::{DurableMarks, MarkStore, MarksError};

/// How a request is guarded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Guarding {
    /// A request without a token gets 428. Otherwise it is free, and one with a token is checked.
    pub token_required: bool,
    /// The resource's name. `None`: the one that the client names, or else the path.
    pub resource: Option<String>,
}

/// A request whose fencing headers were read.
#[must_use]
pub struct FencedRequest<M> {
    settings: Arc<Settings<M>>,
    fenced: Fenced,
    is_answered_by_fence: bool,
}

/// A request that was admitted to its resource, and whose marks are not raised yet. Dropping it ends the
/// request.
#[must_use]
pub struct AdmittedRequest<M> {
    settings: Arc<Settings<M>>,
    fenced: Fenced,
    pass: Pass,
}

impl<M> fmt::Debug for FencedRequest<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedRequest").field("fenced", &self.fenced).finish_non_exhaustive()
    }
}

impl<M> fmt::Debug for AdmittedRequest<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmittedRequest").field("fenced", &self.fenced).finish_non_exhaustive()
    }
}

impl<M: MarkStore> HttpFence<M> {
    /// Reads the fencing headers of a request, for callers that are no `tower` layer; the fence's own
    /// [`Rules`](super::Rules) about methods and resources are not applied. `None`: the request has no token,
    /// and needs none. Adds [`Fenced`] to the request's extensions.
    ///
    /// # Errors
    /// The response to a request that is refused.
    #[expect(
        clippy::result_large_err,
        reason = "as of the async steps that follow; a refusal is a whole response"
    )]
    pub fn read(
        &self,
        parts: &mut Parts,
        guarding: Guarding,
    ) -> Result<Option<FencedRequest<M>>, Response<Bytes>> {
        self.settings.read(parts, guarding).map_err(Problem::into_response)
    }
}

impl<M: MarkStore> FencedRequest<M> {
    /// The resource, the action, and the section of the request.
    pub fn fenced(&self) -> &Fenced {
        &self.fenced
    }

    /// Whether the request is a POST with `Fencing-Action: enter`, which the fence answers with 204.
    #[must_use]
    pub fn is_answered_by_fence(&self) -> bool {
        self.is_answered_by_fence
    }

    /// Waits for the request's admission. From then on, requests with lower tokens are refused at this
    /// resource.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// The response to a request that is refused.
    pub async fn admit(self) -> Result<AdmittedRequest<M>, Response<Bytes>> {
        self.wait_for_admission().await.map_err(Problem::into_response)
    }

    pub(super) async fn wait_for_admission(self) -> Result<AdmittedRequest<M>, Problem> {
        let Self { settings, fenced, .. } = self;
        let resource = fenced.resource.clone();
        let pass = settings.doors.admit(settings.wait, resource, fenced.action, fenced.section).await?;
        Ok(AdmittedRequest { settings, fenced, pass })
    }
}

impl<M: MarkStore> AdmittedRequest<M> {
    /// Checks the durable marks, and raises them. The request has ended when the [`Pass`] is dropped.
    ///
    /// Cancel safe; a mark may have risen then.
    ///
    /// # Errors
    /// The response to a request that is refused.
    pub async fn raise(self) -> Result<Pass, Response<Bytes>> {
        self.raise_marks().await.map_err(Problem::into_response)
    }

    pub(super) async fn raise_marks(self) -> Result<Pass, Problem> {
        let Fenced { resource, action, section } = &self.fenced;
        let _ = self.settings.store.check(resource, *action, *section).await?;
        Ok(self.pass)
    }
}

impl AdmittedRequest<DurableMarks> {
    /// As [`Self::raise`], unless `refusal` finds a reason in the marks: both are decided in one step, so no
    /// other request's marks come in between.
    ///
    /// Cancel safe; a mark may have risen then.
    ///
    /// # Errors
    /// That of `refusal`, which is called first; the response to a request that the fence refuses.
    pub async fn raise_unless<E: From<Response<Bytes>>>(
        self,
        refusal: impl Fn(&Marks) -> Option<E>,
    ) -> Result<Pass, E> {
        let Fenced { resource, action, section } = &self.fenced;
        let refusal = |marks: &Marks| refusal(marks).map(NotRaised::Caller);
        match self.settings.store.check_unless(resource, *action, *section, refusal).await {
            Ok(_) => Ok(self.pass),
            Err(NotRaised::Caller(error)) => Err(error),
            Err(NotRaised::Marks(error)) => Err(Problem::from(error).into_response().into()),
        }
    }
}

/// Why [`AdmittedRequest::raise_unless`] raised no mark.
enum NotRaised<E> {
    /// The caller's reason.
    Caller(E),
    Marks(MarksError),
}

impl<E> From<MarksError> for NotRaised<E> {
    fn from(error: MarksError) -> Self {
        Self::Marks(error)
    }
}

impl<M: MarkStore> Settings<M> {
    pub(super) fn read(
        self: &Arc<Self>,
        parts: &mut Parts,
        guarding: Guarding,
    ) -> Result<Option<FencedRequest<M>>, Problem> {
        // A missing token is reported before problems of other headers.
        if guarding.token_required && !parts.headers.contains_key(TOKEN) {
            return Err(Problem::token_required(&parts.method));
        }
        let Some(said) = headers::read(&parts.headers)? else { return Ok(None) };
        let reads = is_read(&parts.method);
        let action = said.action.unwrap_or(if reads { Action::Enter } else { Action::Write });
        if action == Action::Enter && !reads && parts.method != Method::POST {
            // A 204 by the fence would look as if the request had been executed; calling the handler would
            // execute a write that was checked only as an enter.
            return Err(Problem::meaningless(format!(
                "Fencing-Action: enter goes with POST, which does nothing else, or with GET and HEAD, which then read; \
                 not with {}",
                parts.method
            )));
        }
        let resource = resource(parts, guarding.resource, said.resource)?;
        let is_answered_by_fence = action == Action::Enter && !reads;
        let fenced = Fenced { resource, action, section: said.section };
        parts.extensions.insert(fenced.clone());
        Ok(Some(FencedRequest { settings: Arc::clone(self), fenced, is_answered_by_fence }))
    }
}

/// The resource of a request: the one that the server names, or else the client, or else the path.
fn resource(parts: &Parts, name: Option<String>, said: Option<Resource>) -> Result<Resource, Problem> {
    let Some(name) = name else {
        return said.map_or_else(|| of_path(parts), Ok);
    };
    let known = Resource::new(&name).map_err(|bad| {
        Problem::meaningless(format!("this request has no resource that can be fenced: {bad}"))
    })?;
    match said {
        Some(said) if said != known => Err(Problem::malformed(
            shown(&RESOURCE),
            format!("is `{said}`, and this request is about `{known}`; leave it out, or send that"),
        )),
        _ => Ok(known),
    }
}

/// The resource that the path names, percent-decoded: most services treat `/a` and `/%61` as the same path,
/// and two names would have two sets of marks.
fn of_path(parts: &Parts) -> Result<Resource, Problem> {
    let path = parts.uri.path();
    let bad = |why: &str| {
        Problem::meaningless(format!("the path can't name the resource: {why}. Send Fencing-Resource"))
    };
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8();
    let decoded = decoded.map_err(|_| bad("decoded, it is not UTF-8"))?;
    Resource::new(&decoded).map_err(|error| bad(&error.to_string()))
}
