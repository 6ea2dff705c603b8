//! Whether a caller may make a call: the permission that the call needs, and the rate limit.

use lockkeeper_core::{Command, LockName};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1;
use prost::Message;
use tonic::Status;

use super::{Caller, Callers};
use crate::access::{self, Identity, Permission, Rights};
use crate::front::fields;
use crate::front::paths::{SESSION_CALL, call_name};

/// Calls that the rate limit does not count: a client needs them to find the leader and to reconnect.
/// Requests on a session's stream are counted one by one.
const UNCOUNTED: [&str; 3] = [
    "/lockkeeper.v1.Lockkeeper/Session",
    "/lockkeeper.v1.Lockkeeper/Status",
    "/lockkeeper.v1.Lockkeeper/Members",
];

impl Callers {
    /// Checks whether the caller may make this call. A call that needs no particular permission is allowed to
    /// callers with at least one permission.
    ///
    /// # Errors
    /// The refusal; or the body is no message of the call.
    pub(in crate::front) fn authorize(&self, caller: &Caller, path: &str, body: &[u8]) -> Result<(), Status> {
        if caller.is_checked {
            return Ok(());
        }
        let Some(rights) = self.access.rights(&caller.identity) else { return Ok(()) };
        if path == SESSION_CALL {
            return self.authorize_session_call(caller, &message(body)?);
        }
        if !UNCOUNTED.contains(&path) {
            self.count(caller, &rights)?;
        }
        match needed(path, body)? {
            Some((action, name)) => self.check(caller, &rights, action, name.as_ref()),
            None => self.check_any(caller, &rights),
        }
    }

    /// Checks whether the caller may make this session call.
    ///
    /// # Errors
    /// The refusal.
    pub(in crate::front) fn authorize_session_call(
        &self,
        caller: &Caller,
        call: &v1::SessionCallRequest,
    ) -> Result<(), Status> {
        if caller.is_checked {
            return Ok(());
        }
        let Some(rights) = self.access.rights(&caller.identity) else { return Ok(()) };
        let request = call.item.clone().map(Request::try_from);
        if !matches!(&request, Some(Ok(request)) if !is_counted(request)) {
            self.count(caller, &rights)?;
        }
        if let Some(Ok(request)) = &request
            && let Some(text) = denied_acquire(&rights, &caller.identity, request)
        {
            return self.denied(caller, text);
        }
        self.check_any(caller, &rights)
    }

    /// Counts a call against the caller's rate limit.
    ///
    /// # Errors
    /// The limit is exceeded.
    pub(in crate::front) fn count_call(&self, caller: &Caller) -> Result<(), Status> {
        match self.access.rights(&caller.identity) {
            Some(rights) if !caller.is_checked => self.count(caller, &rights),
            _ => Ok(()),
        }
    }

    /// Counts a call that needs no particular permission, and checks that the caller has at least one
    /// permission.
    ///
    /// # Errors
    /// The refusal.
    pub(in crate::front) fn authorize_any(&self, caller: &Caller) -> Result<(), Status> {
        let Some(rights) = self.access.rights(&caller.identity) else { return Ok(()) };
        self.count(caller, &rights)?;
        self.check_any(caller, &rights)
    }

    fn count(&self, caller: &Caller, rights: &Rights) -> Result<(), Status> {
        self.access.count_request(rights, &caller.identity).map_err(|text| {
            self.over_quota("requests-per-second", caller, &text);
            Status::resource_exhausted(text)
        })
    }

    fn denied(&self, caller: &Caller, text: String) -> Result<(), Status> {
        self.refused("denied", caller, &text);
        Err(Status::permission_denied(text))
    }

    /// Checks that the caller has at least one permission.
    fn check_any(&self, caller: &Caller, rights: &Rights) -> Result<(), Status> {
        if !rights.is_empty() {
            return Ok(());
        }
        let text = self.access.revoked(&caller.identity).unwrap_or_else(|| {
            format!("{} may do nothing here: this node's permissions do not name it", caller.identity)
        });
        self.denied(caller, text)
    }

    /// Checks whether the caller has the permission `action` for the name; `None`: for all names.
    ///
    /// # Errors
    /// The refusal.
    pub(in crate::front) fn authorize_for(
        &self,
        caller: &Caller,
        action: Permission,
        name: Option<&LockName>,
    ) -> Result<(), Status> {
        let Some(rights) = self.access.rights(&caller.identity) else { return Ok(()) };
        self.check(caller, &rights, action, name)
    }

    fn check(
        &self,
        caller: &Caller,
        rights: &Rights,
        action: Permission,
        name: Option<&LockName>,
    ) -> Result<(), Status> {
        access::check(rights, &caller.identity, action, name).or_else(|text| self.denied(caller, text))
    }
}

/// Whether this request of a session counts against the rate limit. Requests that keep or end what a client
/// already has do not count.
pub(in crate::front) fn is_counted(request: &Request) -> bool {
    match request {
        Request::Open(_) => true,
        Request::Command { command, .. } => command.is_rate_limited(),
        Request::Attach { .. } | Request::KeepAlive { .. } | Request::Denied { .. } => false,
    }
}

/// The refusal of an acquire for which the client has no permission; else `None`.
pub(in crate::front) fn denied_acquire(
    rights: &Rights,
    caller: &Identity,
    request: &Request,
) -> Option<String> {
    let Request::Command { command: Command::Acquire(acquire), .. } = request else { return None };
    let check = |name| access::check(rights, caller, Permission::Acquire, Some(name)).err();
    acquire.names.iter().find_map(check)
}

/// The permission that a call needs, and the name that it must cover; without a name it must cover all names.
/// `None`: no particular permission is needed.
fn needed(path: &str, body: &[u8]) -> Result<Option<(Permission, Option<LockName>)>, Status> {
    let Some(call) = call_name(path) else { return Ok(None) };
    let (action, name) = match call {
        "Describe" => {
            (Permission::Read, Some(fields::name("name", &message::<v1::DescribeRequest>(body)?.name)?))
        }
        "List" => {
            (Permission::Read, fields::optional_name("prefix", &message::<v1::ListRequest>(body)?.prefix)?)
        }
        "ListSessions" => (Permission::Read, None),
        "EndSession" => (Permission::Break, None),
        "Watch" => {
            (Permission::Read, fields::optional_name("prefix", &message::<v1::WatchRequest>(body)?.prefix)?)
        }
        "CheckToken" => {
            (Permission::Read, Some(fields::name("name", &message::<v1::CheckTokenRequest>(body)?.name)?))
        }
        "Break" => (Permission::Break, Some(fields::name("name", &message::<v1::BreakRequest>(body)?.name)?)),
        "SetLimit" => {
            (Permission::Limit, Some(fields::name("name", &message::<v1::SetLimitRequest>(body)?.name)?))
        }
        "Audit" | "Backup" | "ChangeMembers" | "Transfer" => (Permission::Admin, None),
        _ => return Ok(None),
    };
    Ok(Some((action, name)))
}

/// The message of a unary call's body. The body has a compression flag (one byte; this service offers no
/// compression), the length (four bytes), and the message.
pub(in crate::front) fn message<M: Message + Default>(body: &[u8]) -> Result<M, Status> {
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
        assert_eq!(needed(&path("EndSession"), &all).unwrap(), Some((Permission::Break, None)));
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
