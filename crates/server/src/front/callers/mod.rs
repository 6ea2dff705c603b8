//! Who calls, and whether it may: callers are identified by their certificates or tokens, their permissions
//! checked, and refusals recorded in the audit trail.

mod authorize;

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use lockkeeper_places::{NoPlace, Places, TakenPlace};
use tonic::Status;

use super::paths::{ADDRESS, FORWARDED, IDENTITY};
use crate::access::{Access, Identity, TokenId};
use crate::audit::Audit;
use crate::observe;
use crate::peers::Directory;
use crate::tls::{CertificateNames, NodeName, NodeTls};
pub(super) use authorize::{denied_acquire, is_counted, message};

/// An identified caller.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) identity: Identity,
    /// The token with which the caller authenticated, if it used one.
    pub(super) token: Option<TokenId>,
    /// The address of the caller's connection. For a forwarded call, its connection to the node that
    /// forwarded the call.
    pub(super) address: Arc<str>,
    /// Another node has checked the caller's permissions, and has forwarded the call.
    pub(super) is_checked: bool,
}

/// The subject of a client's certificate.
#[derive(Debug)]
pub(super) enum Certified {
    Client(Identity),
    Node(NodeName),
    /// The certificate has no usable name; the reason, in words for the client.
    Nobody(String),
}

impl Certified {
    pub(super) fn of(certificate: &[u8]) -> Self {
        let names = match CertificateNames::of(certificate) {
            Ok(names) => names,
            Err(why) => return Self::Nobody(format!("your certificate can't be read: {why}")),
        };
        match (names.node(), names.identity()) {
            (Some(node), _) => Self::Node(node.clone()),
            (None, None) => Self::Nobody("your certificate has no name".to_owned()),
            (None, Some(name)) => match Identity::new(name) {
                Ok(identity) => Self::Client(identity),
                Err(error) => Self::Nobody(format!("your certificate names nobody: {error}")),
            },
        }
    }
}

/// Identifies and authorizes callers, and records what they are refused.
pub(super) struct Callers {
    pub(super) access: Arc<Access>,
    pub(super) audit: Arc<Audit>,
    /// `None`: connections are plain.
    tls: Option<Arc<NodeTls>>,
    /// The members that this node knows; unset for a node without peers.
    directory: Arc<OnceLock<Arc<Directory>>>,
}

impl Callers {
    pub(super) fn new(
        access: Arc<Access>,
        audit: Arc<Audit>,
        tls: Option<Arc<NodeTls>>,
        directory: Arc<OnceLock<Arc<Directory>>>,
    ) -> Self {
        Self { access, audit, tls, directory }
    }

    /// Identifies the caller: by its token if the call has one, else by its certificate. Without TLS, a
    /// caller without a token is anonymous.
    ///
    /// # Errors
    /// The refusal of a caller that can't be identified; recorded in the audit trail.
    pub(super) fn identify(
        &self,
        certified: Option<&Certified>,
        address: &Arc<str>,
        headers: &HeaderMap,
    ) -> Result<Caller, Status> {
        self.claimed(certified, address, headers).inspect_err(|refusal| {
            self.audit.refused("unauthenticated", &Identity::ANONYMOUS, address, refusal.message());
        })
    }

    fn claimed(
        &self,
        certified: Option<&Certified>,
        address: &Arc<str>,
        headers: &HeaderMap,
    ) -> Result<Caller, Status> {
        let of =
            |identity, token| Ok(Caller { identity, token, address: address.clone(), is_checked: false });
        if let Some(Certified::Node(node)) = certified {
            return self.forwarded(node, headers);
        }
        if let Some(value) = headers.get(http::header::AUTHORIZATION) {
            if !self.access.takes_tokens() {
                return Err(Status::unauthenticated(
                    "this node takes no tokens: it was started without `--tokens FILE`",
                ));
            }
            let token = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
            return match token.and_then(|token| self.access.caller(token.trim())) {
                Some((identity, token)) => of(identity, Some(token)),
                None => Err(Status::unauthenticated(
                    "this node does not know the token: it is not in its file (`lockkeeper token add NAME` makes one)",
                )),
            };
        }
        match certified {
            Some(Certified::Client(identity)) => of(identity.clone(), None),
            Some(Certified::Nobody(why)) => Err(Status::unauthenticated(why)),
            Some(Certified::Node(_)) => Err(Status::internal("a node's call was not recognized: a bug")),
            None if self.tls.is_none() => of(Identity::ANONYMOUS, None),
            None if self.access.takes_tokens() => Err(Status::unauthenticated(
                "this service accepts only clients with a certificate or a token: add `?tls-cert=FILE&tls-key=FILE` or \
                 `?token-file=FILE` to the URL of --locks; over HTTP, show a certificate (`curl --cert FILE --key \
                 FILE`) or the header `Authorization: Bearer TOKEN`",
            )),
            None => Err(Status::unauthenticated(
                "this service accepts only clients with a certificate (`lockkeeper tls issue --client NAME` makes \
                 one): add `?tls-cert=FILE&tls-key=FILE` to the URL of --locks; over HTTP, `curl --cert FILE --key FILE`",
            )),
        }
    }

    /// The caller of a call that another node forwards. The other node must be a member: the right to issue
    /// node certificates does not suffice to name a caller. A node's certificate is not accepted as a
    /// client's.
    fn forwarded(&self, node: &NodeName, headers: &HeaderMap) -> Result<Caller, Status> {
        let own = self.tls.as_ref().map(|tls| tls.name().cluster);
        if own.as_ref() != Some(&node.cluster) {
            return Err(Status::permission_denied(format!(
                "your certificate is of {node}, which is not this cluster"
            )));
        }
        let is_member = |node| self.directory.get().is_some_and(|directory| directory.is_member(node));
        if !node.node.is_none_or(is_member) {
            return Err(Status::permission_denied(format!(
                "your certificate is of {node}, which is no member of this cluster, or was removed (`lockkeeper cluster status`)"
            )));
        }
        if !headers.contains_key(FORWARDED) {
            return Err(Status::permission_denied(format!(
                "your certificate is of {node}: a client needs one of its own (`lockkeeper tls issue --client NAME`)"
            )));
        }
        let name = headers.get(IDENTITY).map(|name| String::from_utf8_lossy(name.as_bytes()));
        // Without the header, the other node has checked nothing: its version has no permissions.
        let is_checked = name.is_some();
        let identity = match name.as_deref() {
            None | Some("") => Identity::ANONYMOUS,
            Some(name) => Identity::new(name)
                .map_err(|error| Status::invalid_argument(format!("`{IDENTITY}` is none: {error}")))?,
        };
        let address = headers.get(ADDRESS).map(|it| String::from_utf8_lossy(it.as_bytes()).into());
        Ok(Caller { identity, token: None, address: address.unwrap_or_default(), is_checked })
    }

    /// Records that a caller was refused.
    pub(super) fn refused(&self, what: &'static str, caller: &Caller, why: &str) {
        self.audit.refused(what, &caller.identity, &caller.address, why);
    }

    /// Records that a caller has reached a quota.
    pub(super) fn over_quota(&self, what: &'static str, caller: &Caller, why: &str) {
        observe::quota_refused(what);
        self.refused("quota", caller, why);
    }

    /// The refusal if the current files no longer permit the caller; recorded in the audit trail. To be
    /// called once a stream is registered: the files may have changed since the call was authorized.
    pub(super) fn ended(&self, caller: &Caller) -> Option<String> {
        let refusal = self.access.ended(&caller.identity, caller.token.as_ref())?;
        self.refused("denied", caller, &refusal);
        Some(refusal)
    }

    /// Counts a stream or watch towards the limits, in total and of its caller. Anonymous callers count
    /// towards the total only, since they can't be told apart.
    ///
    /// # Errors
    /// A limit is reached; recorded in the audit trail.
    pub(super) fn place(
        &self,
        what: &'static str,
        places: &Arc<Places<Identity>>,
        caller: &Caller,
    ) -> Result<TakenPlace<Identity>, Status> {
        let identity = Some(&caller.identity).filter(|identity| **identity != Identity::ANONYMOUS);
        places.take(identity.cloned()).map_err(|none| {
            let text = match none {
                NoPlace::OfHolder(most) => {
                    format!(
                        "{} has {most} {what} at this node, the most that one client may have",
                        caller.identity
                    )
                }
                NoPlace::InAll(most) => format!("this node has {most} {what}, the most that it allows"),
            };
            self.over_quota(what, caller, &text);
            Status::resource_exhausted(format!("{text}; end some"))
        })
    }
}
