//! The gRPC service itself: validates requests and passes them on.

use std::sync::Arc;
use std::time::SystemTime;

use lockkeeper_core::{Break, Page, SessionId, Token, limits, validate};
use lockkeeper_replica::{Answer, Change, Question};
use lockkeeper_wire::v1::lockkeeper_server::Lockkeeper;
use lockkeeper_wire::v1::{self, StreamEndReason, change_members_request};
use tonic::{Extensions, Request, Response, Status, Streaming};

use super::backup::Parts;
use super::watch::{Watcher, Watching};
use super::{Ask, Calls};
use crate::access::Identity;
use crate::audit::AuditRecord;
use crate::disk_space::DiskReading;
use crate::front::callers::Caller;
use crate::front::fields::{name, optional_name, page, token};
use crate::front::paths::FORWARDED;
use crate::front::sessions::{StreamResponses, stream_end};
use crate::front::statuses::{unexpected, unrecorded};
use crate::front::transport::{Arriving, Connection, Starting};

/// The service.
pub(in crate::front) struct Api(pub(in crate::front) Arc<Calls>);

#[tonic::async_trait]
impl Lockkeeper for Api {
    type SessionStream = StreamResponses;
    type WatchStream = Watching;
    type BackupStream = Parts;

    async fn session(
        &self,
        request: Request<Streaming<v1::ClientFrame>>,
    ) -> Result<Response<StreamResponses>, Status> {
        let (metadata, mut extensions, inbound) = request.into_parts();
        let is_relayed = metadata.contains_key(FORWARDED);
        let sessions = &self.0.sessions;
        let starting = extension::<Starting>(&mut extensions)?;
        let caller = caller(&extensions)?;
        let stream = sessions.open_stream(starting.connection(), caller.clone(), is_relayed)?;
        tokio::spawn(stream.clone().read(sessions.clone(), inbound));
        drop(starting);
        if self.0.replica.stopping.is_cancelled() {
            stream.end(stream_end(StreamEndReason::Shutdown, "this node shuts down".to_owned()));
        } else if let Some(refusal) = self.0.callers.ended(caller) {
            stream.end(stream_end(StreamEndReason::Denied, refusal));
        }
        Ok(Response::new(StreamResponses(stream)))
    }

    async fn session_call(
        &self,
        request: Request<v1::SessionCallRequest>,
    ) -> Result<Response<v1::SessionCallResponse>, Status> {
        let (_, mut extensions, asked) = request.into_parts();
        let arriving = extension::<Arriving>(&mut extensions)?;
        self.0.sessions.session_call(caller(&extensions)?, &arriving, asked).await.map(Response::new)
    }

    async fn describe(
        &self,
        request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let question = Question::Describe {
            name: name("name", &asked.name)?,
            page: Page {
                after: Token::new(asked.holds_after),
                ..Page::first(page("waiters_max", asked.waiters_max)?)
            },
        };
        match self.0.ask(&metadata, &caller(&extensions)?.identity, question).await? {
            Answer::Described(response) => Ok(Response::new(response)),
            _ => Err(unexpected()),
        }
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let question = Question::List {
            prefix: optional_name("prefix", &asked.prefix)?,
            max: page("page_size", asked.page_size)?,
            after: asked.after,
        };
        match self.0.ask(&metadata, &caller(&extensions)?.identity, question).await? {
            Answer::Listed(response) => Ok(Response::new(response)),
            _ => Err(unexpected()),
        }
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let question = Question::Sessions { max: page("page_size", asked.page_size)?, after: asked.after };
        match self.0.ask(&metadata, &caller(&extensions)?.identity, question).await? {
            Answer::Sessions(response) => Ok(Response::new(response)),
            _ => Err(unexpected()),
        }
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Watching>, Status> {
        let (_, mut extensions, asked) = request.into_parts();
        let connection = extension::<Connection>(&mut extensions)?;
        let caller = caller(&extensions)?.clone();
        let prefix = optional_name("prefix", &asked.prefix)?;
        self.0.replica.check_serving()?;
        let place = self.0.callers.place("watches", &self.0.watch_places, &caller)?;
        let watcher = Arc::new(Watcher::new(connection, caller.clone(), place));
        let waits =
            self.0.wait_for(Ask::Watch(watcher.clone()), &caller.identity, Question::Watch { prefix });
        if let Some(refusal) = self.0.callers.ended(&caller) {
            watcher.stop(Status::permission_denied(refusal));
        }
        Ok(Response::new(Watching { watcher, waits }))
    }

    async fn check_token(
        &self,
        request: Request<v1::CheckTokenRequest>,
    ) -> Result<Response<v1::CheckTokenResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let question = Question::CheckToken { name: name("name", &asked.name)?, token: asked.token };
        match self.0.ask(&metadata, &caller(&extensions)?.identity, question).await? {
            Answer::Checked(response) => Ok(Response::new(response)),
            _ => Err(unexpected()),
        }
    }

    async fn r#break(
        &self,
        request: Request<v1::BreakRequest>,
    ) -> Result<Response<v1::BreakResponse>, Status> {
        let (metadata, extensions, mut asked) = request.into_parts();
        let from = caller(&extensions)?.clone();
        asked.by = author(&from.identity, asked.by);
        let by = Some(format!("by {}", asked.by)).filter(|_| !asked.by.is_empty());
        let detail = asked.now.then(|| "now".to_owned()).into_iter().chain(by).collect::<Vec<_>>().join(", ");
        let record = AuditRecord {
            name: asked.name.clone(),
            token: Some(asked.token),
            detail,
            reason: asked.reason.clone(),
            ..by_caller("break", &from)
        };
        let question = Question::Break(Break {
            name: name("name", &asked.name)?,
            token: token(asked.token)?,
            reason: asked.reason.into(),
            by: asked.by.into(),
            now: asked.now,
        });
        let complete = |answer: &Answer, record: &mut AuditRecord| {
            if let Answer::Broken(response) = answer {
                let result = match response.result() {
                    v1::BreakResult::Done => "done",
                    v1::BreakResult::NotCurrent | v1::BreakResult::Unspecified => "not-current",
                    v1::BreakResult::StillClosed => "still-closed",
                };
                record.result = result.to_owned();
            }
        };
        match self.0.order(&metadata, &from.identity, question, record, complete).await? {
            Answer::Broken(response) => Ok(Response::new(response)),
            _ => Err(unexpected()),
        }
    }

    async fn end_session(
        &self,
        request: Request<v1::EndSessionRequest>,
    ) -> Result<Response<v1::EndSessionResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let from = caller(&extensions)?;
        let by = author(&from.identity, asked.by);
        validate::break_texts(&asked.reason, &by)
            .map_err(|rejection| Status::invalid_argument(rejection.to_string()))?;
        let mut detail = format!("session {}", asked.session);
        if asked.now {
            detail += ", now";
        }
        if !by.is_empty() {
            detail += &format!(", by {by}");
        }
        let record = AuditRecord { detail, reason: asked.reason, ..by_caller("end-session", from) };
        let question = Question::EndSession { session: SessionId(asked.session), now: asked.now };
        let complete = |answer: &Answer, record: &mut AuditRecord| {
            let result = match answer {
                Answer::SessionEnded(v1::EndSessionResult::Attached) => "attached",
                Answer::SessionEnded(v1::EndSessionResult::Gone) => "gone",
                _ => return,
            };
            record.result = result.to_owned();
        };
        match self.0.order(&metadata, &from.identity, question, record, complete).await? {
            Answer::SessionEnded(result) => {
                Ok(Response::new(v1::EndSessionResponse { result: result.into() }))
            }
            _ => Err(unexpected()),
        }
    }

    async fn set_limit(
        &self,
        request: Request<v1::SetLimitRequest>,
    ) -> Result<Response<v1::SetLimitResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let from = caller(&extensions)?;
        let question = Question::SetLimit { name: name("name", &asked.name)?, limit: asked.permits };
        let detail = asked.permits.map_or("removed".to_owned(), |permits| format!("{permits} permits"));
        let record = AuditRecord { name: asked.name, detail, ..by_caller("set-limit", from) };
        match self.0.order(&metadata, &from.identity, question, record, |_, _| {}).await? {
            Answer::LimitSet => Ok(Response::new(v1::SetLimitResponse {})),
            _ => Err(unexpected()),
        }
    }

    async fn backup(&self, request: Request<v1::BackupRequest>) -> Result<Response<Parts>, Status> {
        let from = caller(request.extensions())?;
        let parts = self.0.backup(request.metadata(), &from.identity).await?;
        let record = by_caller("backup", from);
        self.0.callers.audit.done(record).await.map_err(|error| unrecorded(&error))?;
        Ok(Response::new(parts))
    }

    async fn members(
        &self,
        request: Request<v1::MembersRequest>,
    ) -> Result<Response<v1::MembersResponse>, Status> {
        match self
            .0
            .ask(request.metadata(), &caller(request.extensions())?.identity, Question::Members)
            .await?
        {
            Answer::Members(mut response) => {
                if let Some(directory) = self.0.directory.get() {
                    directory.introduce(&mut response.nodes);
                }
                Ok(Response::new(response))
            }
            _ => Err(unexpected()),
        }
    }

    async fn change_members(
        &self,
        request: Request<v1::ChangeMembersRequest>,
    ) -> Result<Response<v1::ChangeMembersResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let from = caller(&extensions)?;
        let (change, detail) = match asked.what {
            Some(change_members_request::What::Remove(node)) => {
                (Change::Remove(node), format!("remove {node}"))
            }
            Some(change_members_request::What::Add(new)) => {
                let detail = format!("add {}={}", new.node, new.peer_address);
                // Fails here unless this node leads. The leader then identifies the node by connecting to the
                // given address: if two machines claim this id, the one at the address is added.
                self.0.ask(&metadata, &from.identity, Question::Members).await?;
                (Change::Add(self.0.candidate(new).await?), detail)
            }
            None => return Err(Status::invalid_argument("neither `add` nor `remove` is given")),
        };
        let record = AuditRecord { detail, ..by_caller("members", from) };
        match self.0.order(&metadata, &from.identity, Question::Change(change), record, |_, _| {}).await? {
            Answer::Changed => Ok(Response::new(v1::ChangeMembersResponse {})),
            _ => Err(unexpected()),
        }
    }

    async fn transfer(
        &self,
        request: Request<v1::TransferRequest>,
    ) -> Result<Response<v1::TransferResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let from = caller(&extensions)?;
        let to = Some(asked.node).filter(|node| *node > 0);
        if asked.reason.len() > limits::LABEL_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "the reason has {} bytes, at most {} are allowed",
                asked.reason.len(),
                limits::LABEL_BYTES_MAX
            )));
        }
        let record = AuditRecord { reason: asked.reason, ..by_caller("transfer", from) };
        let complete = |answer: &Answer, record: &mut AuditRecord| {
            if let Answer::Transferred { leader } = answer {
                record.detail = format!("to node {leader}");
            }
        };
        match self.0.order(&metadata, &from.identity, Question::Transfer { to }, record, complete).await? {
            Answer::Transferred { leader } => Ok(Response::new(v1::TransferResponse { leader })),
            _ => Err(unexpected()),
        }
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        match self
            .0
            .ask(request.metadata(), &caller(request.extensions())?.identity, Question::Status)
            .await?
        {
            Answer::Status(mut status) => {
                status.relayed_streams = self.0.relays.count() as u64;
                status.version = env!("CARGO_PKG_VERSION").to_owned();
                status.cluster.clone_from(&self.0.about.cluster);
                status.incarnation.clone_from(&self.0.about.incarnation);
                let ends = self.0.tls.as_ref().map(|tls| tls.expires());
                let ends = ends.and_then(|ends| ends.duration_since(SystemTime::UNIX_EPOCH).ok());
                status.certificate_ends = ends.map_or(0, |ends| ends.as_secs());
                status.permissions = self.0.callers.access.digest().unwrap_or_default();
                if let Some(directory) = self.0.directory.get() {
                    directory.introduce(&mut status.members);
                }
                if let Some(DiskReading { used, free, state, full_in }) = self.0.about.disk.reading() {
                    (status.disk_used_bytes, status.disk_free_bytes) = (Some(used), Some(free));
                    status.disk_state = state.into();
                    status.disk_full_in_seconds = full_in.map(|left| left.as_secs());
                }
                status.audit_error = self.0.callers.audit.error().unwrap_or_default();
                status.backup_error.clone_from(&self.0.backup_error.lock());
                status.files_error.clone_from(&self.0.about.files_error.lock());
                Ok(Response::new(*status))
            }
            _ => Err(unexpected()),
        }
    }

    async fn audit(&self, request: Request<v1::AuditRequest>) -> Result<Response<v1::AuditResponse>, Status> {
        let asked = request.into_inner();
        let prefix = optional_name("prefix", &asked.prefix)?;
        let before = Some(asked.before).filter(|before| *before > 0);
        let recent =
            self.0.callers.audit.recent(prefix.as_ref(), page("page_size", asked.page_size)?, before);
        Ok(Response::new(v1::AuditResponse { node: self.0.about.node, ..recent }))
    }
}

/// The author of a break: the caller's identity, followed by the name that the caller gives, if that differs.
fn author(identity: &Identity, says: String) -> String {
    match identity.as_str() {
        "" => says,
        identity if says.is_empty() || says == identity => identity.to_owned(),
        identity => {
            let both = format!("{identity} ({says})");
            if both.len() > limits::LABEL_BYTES_MAX { identity.to_owned() } else { both }
        }
    }
}

/// The audit record of a caller's successful order.
fn by_caller(what: &'static str, caller: &Caller) -> AuditRecord {
    AuditRecord {
        what: what.into(),
        identity: caller.identity.to_string(),
        address: caller.address.to_string(),
        result: "done".to_owned(),
        ..AuditRecord::default()
    }
}

fn caller(extensions: &Extensions) -> Result<&Caller, Status> {
    extensions.get::<Caller>().ok_or_else(|| Status::internal("the call came from nobody: a bug"))
}

/// Takes an extension that the acceptor attached to the call.
fn extension<T: Send + Sync + 'static>(extensions: &mut Extensions) -> Result<Arc<T>, Status> {
    extensions.remove::<Arc<T>>().ok_or_else(|| Status::internal("the call came by no connection: a bug"))
}
