//! Identifies the caller of a call, and checks the caller's permissions.

use std::sync::Arc;

use http::HeaderMap;
use lockkeeper_core::{Command, LockName};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1;
use prost::Message;
use tonic::{Code, Status};

use super::Front;
use super::api;
use super::connection::Connection;
use super::forward::FORWARDED;
use super::session_calls::SESSION_CALL;
use crate::access::{self, Identity, Permission, Rights, TokenId};
use crate::tls::{CertificateNames, NodeName};

/// The header with the identity of a forwarded call's caller. Accepted only from connections with the
/// certificate of another node.
pub(super) const IDENTITY: &str = "lockkeeper-identity";
/// The header with the address of a forwarded call's caller, for the audit trail.
pub(super) const ADDRESS: &str = "lockkeeper-address";
/// The path prefix of the health service, which needs no authentication.
const HEALTH: &str = "/grpc.health.v1.Health/";

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

/// Whether a call needs no authentication.
pub(super) fn is_open_to_all(path: &str) -> bool {
    path.starts_with(HEALTH)
}

/// Identifies the caller: by its token if the call has one, else by its certificate. Without TLS, a caller
/// without a token is anonymous. Records a refusal in the audit trail.
///
/// # Errors
/// The refusal of a caller that can't be identified, whose access was revoked, or that has too many
/// connections.
pub(super) fn identify(connection: &Connection, headers: &HeaderMap) -> Result<Caller, Status> {
    let front = connection.front();
    let caller = claimed(connection, headers).inspect_err(|refusal| {
        let address = connection.address();
        front.audit.refused("unauthenticated", &Identity::ANONYMOUS, &address, refusal.message());
    })?;
    let is_node = matches!(connection.certified.get(), Some(Certified::Node(_)));
    let admitted = connection.admit(if is_node { None } else { Some(&caller) });
    admitted.inspect_err(|refusal| {
        connection.closing.cancel();
        match refusal.code() {
            Code::PermissionDenied => front.refused("denied", &caller, refusal.message()),
            _ => front.over_quota("connections", &caller, refusal.message()),
        }
    })?;
    Ok(caller)
}

/// Counts a connection towards its client's limits as soon as the client's certificate is known. A refusal is
/// ignored here: the first call is refused with the same reason, in words.
pub(super) fn admit_certified(connection: &Connection) {
    if let Some(Certified::Client(identity)) = connection.certified.get() {
        let (identity, address) = (identity.clone(), connection.address());
        let _ = connection.admit(Some(&Caller { identity, token: None, address, is_checked: false }));
    }
}

fn claimed(connection: &Connection, headers: &HeaderMap) -> Result<Caller, Status> {
    let front = connection.front();
    let of =
        |identity, token| Ok(Caller { identity, token, address: connection.address(), is_checked: false });
    if let Some(Certified::Node(node)) = connection.certified.get() {
        return forwarded(front, node, headers);
    }
    if let Some(value) = headers.get(http::header::AUTHORIZATION) {
        if !front.access.takes_tokens() {
            return Err(Status::unauthenticated(
                "this node takes no tokens: it was started without `--tokens FILE`",
            ));
        }
        let token = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
        return match token.and_then(|token| front.access.caller(token.trim())) {
            Some((identity, token)) => of(identity, Some(token)),
            None => Err(Status::unauthenticated(
                "this node does not know the token: it is not in its file (`lockkeeper token add NAME` makes one)",
            )),
        };
    }
    match connection.certified.get() {
        Some(Certified::Client(identity)) => of(identity.clone(), None),
        Some(Certified::Nobody(why)) => Err(Status::unauthenticated(why)),
        Some(Certified::Node(_)) => Err(Status::internal("a node's call was not recognized: a bug")),
        None if front.tls.is_none() => of(Identity::ANONYMOUS, None),
        None if front.access.takes_tokens() => Err(Status::unauthenticated(
            "this service accepts only clients with a certificate or a token: add `?tls-cert=FILE&tls-key=FILE` or \
             `?token-file=FILE` to the URL",
        )),
        None => Err(Status::unauthenticated(
            "this service accepts only clients with a certificate: add `?tls-cert=FILE&tls-key=FILE` to the URL \
             (`lockkeeper tls issue --client NAME` makes one)",
        )),
    }
}

/// The caller of a call that another node forwards. The other node must be a member: the right to issue node
/// certificates does not suffice to name a caller. A node's certificate is not accepted as a client's.
fn forwarded(front: &Front, node: &NodeName, headers: &HeaderMap) -> Result<Caller, Status> {
    let own = front.tls.as_ref().map(|tls| tls.name().cluster);
    if own.as_ref() != Some(&node.cluster) {
        return Err(Status::permission_denied(format!(
            "your certificate is of {node}, which is not this cluster"
        )));
    }
    if !front.directory.get().is_some_and(|directory| directory.is_member(node.node)) {
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

/// Calls that the rate limit does not count: a client needs them to find the leader and to reconnect.
/// Requests on a session's stream are counted one by one.
const UNCOUNTED: [&str; 3] = [
    "/lockkeeper.v1.Lockkeeper/Session",
    "/lockkeeper.v1.Lockkeeper/Status",
    "/lockkeeper.v1.Lockkeeper/Members",
];

/// Checks whether the caller may make this call. A call that needs no particular permission is allowed to
/// callers with at least one permission.
///
/// # Errors
/// The refusal; or the body is no message of the call.
pub(super) fn authorize(front: &Front, caller: &Caller, path: &str, body: &[u8]) -> Result<(), Status> {
    if caller.is_checked {
        return Ok(());
    }
    let Some(rights) = front.access.rights(&caller.identity) else { return Ok(()) };
    if path == SESSION_CALL {
        return authorize_session_call(front, caller, &message(body)?);
    }
    if !UNCOUNTED.contains(&path) {
        count(front, caller, &rights)?;
    }
    match needed(path, body)? {
        Some((action, name)) => check(front, caller, &rights, action, name.as_ref()),
        None => check_any(front, caller, &rights),
    }
}

/// Checks whether the caller may make this session call.
///
/// # Errors
/// The refusal.
pub(super) fn authorize_session_call(
    front: &Front,
    caller: &Caller,
    call: &v1::SessionCallRequest,
) -> Result<(), Status> {
    if caller.is_checked {
        return Ok(());
    }
    let Some(rights) = front.access.rights(&caller.identity) else { return Ok(()) };
    let request = call.item.clone().map(Request::try_from);
    if !matches!(&request, Some(Ok(request)) if !is_counted(request)) {
        count(front, caller, &rights)?;
    }
    if let Some(Ok(request)) = &request
        && let Some(text) = denied_acquire(&rights, &caller.identity, request)
    {
        return denied(front, caller, text);
    }
    check_any(front, caller, &rights)
}

/// Counts a call against the caller's rate limit.
///
/// # Errors
/// The limit is exceeded.
pub(super) fn count_call(front: &Front, caller: &Caller) -> Result<(), Status> {
    match front.access.rights(&caller.identity) {
        Some(rights) if !caller.is_checked => count(front, caller, &rights),
        _ => Ok(()),
    }
}

/// Counts a call that needs no particular permission, and checks that the caller has at least one permission.
///
/// # Errors
/// The refusal.
pub(super) fn authorize_any(front: &Front, caller: &Caller) -> Result<(), Status> {
    let Some(rights) = front.access.rights(&caller.identity) else { return Ok(()) };
    count(front, caller, &rights)?;
    check_any(front, caller, &rights)
}

fn count(front: &Front, caller: &Caller, rights: &Rights) -> Result<(), Status> {
    front.access.count_request(rights, &caller.identity).map_err(|text| {
        front.over_quota("requests-per-second", caller, &text);
        Status::resource_exhausted(text)
    })
}

fn denied(front: &Front, caller: &Caller, text: String) -> Result<(), Status> {
    front.refused("denied", caller, &text);
    Err(Status::permission_denied(text))
}

/// Checks that the caller has at least one permission.
fn check_any(front: &Front, caller: &Caller, rights: &Rights) -> Result<(), Status> {
    if !rights.is_empty() {
        return Ok(());
    }
    let text = front.access.revoked(&caller.identity).unwrap_or_else(|| {
        format!("{} may do nothing here: this node's permissions do not name it", caller.identity)
    });
    denied(front, caller, text)
}

/// Checks whether the caller has the permission `action` for the name; `None`: for all names.
///
/// # Errors
/// The refusal.
pub(super) fn authorize_for(
    front: &Front,
    caller: &Caller,
    action: Permission,
    name: Option<&LockName>,
) -> Result<(), Status> {
    let Some(rights) = front.access.rights(&caller.identity) else { return Ok(()) };
    check(front, caller, &rights, action, name)
}

fn check(
    front: &Front,
    caller: &Caller,
    rights: &Rights,
    action: Permission,
    name: Option<&LockName>,
) -> Result<(), Status> {
    access::check(rights, &caller.identity, action, name).or_else(|text| denied(front, caller, text))
}

/// Whether this request of a session counts against the rate limit. Requests that keep or end what a client
/// already has do not count.
pub(super) fn is_counted(request: &Request) -> bool {
    match request {
        Request::Open(_) => true,
        Request::Command { command, .. } => {
            matches!(command, Command::Acquire(_) | Command::SetValue { .. } | Command::Downgrade { .. })
        }
        Request::Attach { .. } | Request::KeepAlive { .. } | Request::Denied { .. } => false,
    }
}

/// The refusal of an acquire for which the client has no permission; else `None`.
pub(super) fn denied_acquire(rights: &Rights, caller: &Identity, request: &Request) -> Option<String> {
    let Request::Command { command: Command::Acquire(acquire), .. } = request else { return None };
    let check = |name| access::check(rights, caller, Permission::Acquire, Some(name)).err();
    acquire.names.iter().find_map(check)
}

/// The permission that a call needs, and the name that it must cover; without a name it must cover all names.
/// `None`: no particular permission is needed.
fn needed(path: &str, body: &[u8]) -> Result<Option<(Permission, Option<LockName>)>, Status> {
    let Some(call) = path.strip_prefix("/lockkeeper.v1.Lockkeeper/") else { return Ok(None) };
    let (action, name) = match call {
        "Describe" => {
            (Permission::Read, Some(api::name("name", &message::<v1::DescribeRequest>(body)?.name)?))
        }
        "List" => {
            (Permission::Read, api::optional_name("prefix", &message::<v1::ListRequest>(body)?.prefix)?)
        }
        "ListSessions" => (Permission::Read, None),
        "Watch" => {
            (Permission::Read, api::optional_name("prefix", &message::<v1::WatchRequest>(body)?.prefix)?)
        }
        "CheckToken" => {
            (Permission::Read, Some(api::name("name", &message::<v1::CheckTokenRequest>(body)?.name)?))
        }
        "Break" => (Permission::Break, Some(api::name("name", &message::<v1::BreakRequest>(body)?.name)?)),
        "SetLimit" => {
            (Permission::Limit, Some(api::name("name", &message::<v1::SetLimitRequest>(body)?.name)?))
        }
        "Audit" | "Backup" | "ChangeMembers" | "Transfer" => (Permission::Admin, None),
        _ => return Ok(None),
    };
    Ok(Some((action, name)))
}

/// The message of a unary call's body. The body has a compression flag (one byte; this service offers no
/// compression), the length (four bytes), and the message.
pub(super) fn message<M: Message + Default>(body: &[u8]) -> Result<M, Status> {
    const HEAD: usize = 5;
    let bytes = body.split_at_checked(HEAD).and_then(|(head, bytes)| {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        (head[0] == 0 && length == bytes.len()).then_some(bytes)
    });
    let message = bytes.and_then(|bytes| M::decode(bytes).ok());
    message.ok_or_else(|| Status::invalid_argument("the call's message can't be read, or is compressed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(message: &impl Message) -> Vec<u8> {
        let mut body = vec![0];
        body.extend_from_slice(&(message.encoded_len() as u32).to_be_bytes());
        message.encode(&mut body).unwrap();
        body
    }

    fn path(call: &str) -> String {
        format!("/lockkeeper.v1.Lockkeeper/{call}")
    }

    #[test]
    fn every_call_of_the_service_has_its_permission() {
        let name = "orders/42".to_owned();
        let describe = body(&v1::DescribeRequest { name: name.clone(), ..Default::default() });
        let orders = Some(LockName::parse(&name).unwrap());
        assert_eq!(needed(&path("Describe"), &describe).unwrap(), Some((Permission::Read, orders.clone())));
        let order = body(&v1::BreakRequest { name: name.clone(), ..Default::default() });
        assert_eq!(needed(&path("Break"), &order).unwrap(), Some((Permission::Break, orders.clone())));
        let limit = body(&v1::SetLimitRequest { name, ..Default::default() });
        assert_eq!(needed(&path("SetLimit"), &limit).unwrap(), Some((Permission::Limit, orders)));
        let all = body(&v1::ListRequest::default());
        for call in ["List", "Watch", "ListSessions"] {
            assert_eq!(needed(&path(call), &all).unwrap(), Some((Permission::Read, None)), "{call}");
        }
        for call in ["Backup", "ChangeMembers", "Transfer"] {
            assert_eq!(needed(&path(call), &all).unwrap(), Some((Permission::Admin, None)), "{call}");
        }
        for call in ["Status", "Members", "Session", "SessionCall"] {
            assert_eq!(needed(&path(call), &all).unwrap(), None, "{call}");
        }
    }

    #[test]
    fn body_that_hides_its_message_is_refused() {
        let whole = body(&v1::DescribeRequest { name: "a".to_owned(), ..Default::default() });
        let mut compressed = whole.clone();
        compressed[0] = 1;
        let two = [whole.clone(), whole.clone()].concat();
        for wrong in [&[][..], &whole[..3], &whole[..whole.len() - 1], &compressed, &two] {
            assert!(needed(&path("Describe"), wrong).is_err(), "{wrong:?}");
        }
    }
}
