//! What operators do with the service itself.

use lockkeeper_backend::{
    Administration, BackendError, Backup, BoxFuture, ClusterInfo, EndSessionOrder, EndedSession,
    MembersChange, NodeReport, ServiceStatus, SessionInfo,
};
use lockkeeper_core::LockName;
use lockkeeper_wire::v1;

use super::unary::Repeat;
use super::{GrpcClient, PAGE, Service, cluster, describe, nodes};

impl Administration for Service {
    fn sessions(&self) -> BoxFuture<'static, Result<Vec<SessionInfo>, BackendError>> {
        let asker = self.asker.clone();
        Box::pin(async move {
            let (mut sessions, mut after) = (Vec::new(), 0);
            loop {
                let asked = v1::ListSessionsRequest { page_size: PAGE, after };
                let page = asker.ask(Repeat::Again, move |mut client: GrpcClient| async move {
                    client.list_sessions(asked).await
                });
                let page = page.await?;
                sessions.extend(page.sessions.into_iter().map(describe::session));
                if page.next_after == 0 {
                    return Ok(sessions);
                }
                after = page.next_after;
            }
        })
    }

    fn end_session(&self, order: EndSessionOrder) -> BoxFuture<'static, Result<EndedSession, BackendError>> {
        let EndSessionOrder { session, reason, by, now } = order;
        let asked = v1::EndSessionRequest { session, reason, by, now };
        // Safe to repeat: ids of sessions are never reused (S1).
        let answer = self.asker.ask(Repeat::Again, move |mut client: GrpcClient| {
            let asked = asked.clone();
            async move { client.end_session(asked).await }
        });
        Box::pin(async move { describe::ended_session(answer.await?) })
    }

    fn backup(&self) -> Result<Backup, BackendError> {
        let mut answers = self
            .asker
            .follow(|mut client: GrpcClient| async move { client.backup(v1::BackupRequest {}).await });
        let (parts, receiver) = tokio::sync::mpsc::channel(1);
        self.owner.lease_thread.run(Box::pin(async move {
            while let Some(answer) = answers.recv().await {
                if parts.send(answer.map(|answer| answer.part)).await.is_err() {
                    return;
                }
            }
        }));
        Ok(Backup::new(receiver))
    }

    fn set_limit(
        &self,
        name: LockName,
        permits: Option<u32>,
    ) -> BoxFuture<'static, Result<(), BackendError>> {
        let asked = v1::SetLimitRequest { name: name.as_str().to_owned(), permits };
        // Not safe to repeat: a repetition could overwrite a limit that another operator has set in between
        // (O1).
        let answer = self.asker.ask(Repeat::Once, move |mut client: GrpcClient| {
            let asked = asked.clone();
            async move { client.set_limit(asked).await }
        });
        Box::pin(async move { answer.await.map(|v1::SetLimitResponse {}| ()) })
    }

    fn nodes(&self) -> BoxFuture<'static, Result<Vec<NodeReport>, BackendError>> {
        nodes::ask_all(&self.asker)
    }

    fn cluster(&self) -> BoxFuture<'static, Result<ClusterInfo, BackendError>> {
        cluster::info(&self.asker)
    }

    fn change_members(&self, change: MembersChange) -> BoxFuture<'static, Result<(), BackendError>> {
        cluster::change(&self.asker, change)
    }

    fn transfer(&self, to: Option<u64>) -> BoxFuture<'static, Result<u64, BackendError>> {
        cluster::transfer(&self.asker, to)
    }

    fn status(&self) -> BoxFuture<'static, Result<ServiceStatus, BackendError>> {
        let answer = self.asker.ask(Repeat::Again, |mut client: GrpcClient| async move {
            client.status(v1::StatusRequest { node: 0 }).await
        });
        Box::pin(async move { answer.await.map(describe::status) })
    }
}
