//! Identifies a node that waits to be added to the cluster, by a handshake with its address.

use std::sync::Arc;

use lockkeeper_wire::peer::{Hello, Lane, Refusal};
use lockkeeper_wire::store::Member;

use super::directory::Directory;
use super::handshake::{self, Greeter, NoLink};
use crate::tls::NodeTls;

/// A handshake that accepts any node: the connection is closed after it.
struct HandshakeOnly(Arc<Directory>);

impl Greeter for HandshakeOnly {
    fn hello(&self, to: u64, lane: Lane) -> Hello {
        self.0.hello(to, lane)
    }

    fn admit(&self, _hello: &Hello) -> Result<(), Refusal> {
        Ok(())
    }

    fn admit_guest(&self, hello: &Hello) -> Result<(), Refusal> {
        self.0.admit_guest(hello)
    }

    fn tls(&self) -> Option<&NodeTls> {
        self.0.tls()
    }
}

/// Returns the node that waits at `address`, if it reports the id `node`. Only that node itself knows its
/// incarnation, so it must be reached.
///
/// # Errors
/// A text with advice.
pub(crate) async fn who_waits(
    directory: &Arc<Directory>,
    node: u64,
    address: &str,
) -> Result<Member, String> {
    // Checked before connecting: the error for a node that does not answer advises to start the node, which
    // is useless if its id was removed.
    if let Some(removed) = directory.refuses(node) {
        return Err(removed.to_string());
    }
    let hello = match handshake::open(address, node, Lane::Greeting, &HandshakeOnly(directory.clone())).await
    {
        Ok((_, hello)) => hello,
        Err(NoLink::Refused(refusal) | NoLink::Unwanted(refusal)) => return Err(refusal.text),
        Err(NoLink::Unreachable(error)) => {
            return Err(format!(
                "node {node} does not answer at `{address}` ({error}): start it with `lockkeeper serve --node {node} \
                 --peer-listen {address} --join HOST:PORT`, then add it"
            ));
        }
    };
    let candidate = hello.candidate.and_then(|candidate| candidate.member);
    // A node that was added already sends no candidate. This happens if the caller repeats a call whose
    // answer was lost.
    let member = candidate.unwrap_or_else(|| Member {
        node: hello.node,
        incarnation: hello.incarnation.clone(),
        peer_address: String::new(),
        client_address: hello.client_address.clone(),
    });
    if member.node != node || member.incarnation != hello.incarnation {
        return Err(format!("at `{address}` is node {}, not node {node}", hello.node));
    }
    Ok(Member { peer_address: address.to_owned(), ..member })
}
