//! Short constructors for client items, and accessors for server items.

use lockkeeper_core::Token;
use lockkeeper_replica::CallRequest;
use lockkeeper_wire::request::{Request, Secret};
use lockkeeper_wire::v1;
use lockkeeper_wire::v1::server_item::What;

pub(crate) fn acquire(session: u64, seq: u64, name: &str, wait: bool) -> v1::ClientItem {
    let what = v1::client_item::What::Acquire(v1::Acquire {
        seq,
        names: vec![name.into()],
        mode: v1::Mode::Exclusive.into(),
        wait,
        ..v1::Acquire::default()
    });
    v1::ClientItem { session, what: Some(what) }
}

pub(crate) fn finish(session: u64, seq: u64, target: u64) -> v1::ClientItem {
    let what = v1::client_item::What::Finish(v1::Finish { seq, target, done_through: 0 });
    v1::ClientItem { session, what: Some(what) }
}

pub(crate) fn keep_alive(session: u64, id: u64) -> v1::ClientItem {
    v1::ClientItem { session, what: Some(v1::client_item::What::KeepAlive(v1::KeepAlive { id })) }
}

pub(crate) fn attach(session: u64, number: u8, attach: u64) -> v1::ClientItem {
    let what = v1::AttachSession { secret: vec![number; 16], attach };
    v1::ClientItem { session, what: Some(v1::client_item::What::Attach(what)) }
}

/// The bodies of the items, with their seq.
pub(crate) fn bodies(items: Vec<v1::ServerItem>) -> Vec<(u64, What)> {
    items.into_iter().map(|item| (item.seq, item.what.expect("a body"))).collect()
}

/// The token if the items are exactly one grant.
pub(crate) fn granted(items: &[v1::ServerItem]) -> Option<Token> {
    match items {
        [v1::ServerItem { what: Some(What::Granted(granted)), .. }] => Token::new(granted.token),
        _ => None,
    }
}

/// The item as a call, with the secret made of `number`.
pub(crate) fn by_call(item: v1::ClientItem, number: u8) -> CallRequest {
    CallRequest::new(Request::try_from(item).unwrap(), Secret([number; 16])).unwrap()
}
