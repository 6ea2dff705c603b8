//! The fuzz target `wire`: frames of clients, nodes and the service, and batches of the log applied to a
//! table.

use lockkeeper_core::{Command, Effects, Table, invariants};
use prost::Message;

use crate::{answer, entry, peer, request, store, v1};

/// Most commands that one input applies.
const COMMANDS_MAX: usize = 64;

/// Decodes `bytes`; the first one selects the decoder.
///
/// # Panics
/// If a decoder breaks its promise.
pub fn run(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    match what % 4 {
        0 => client_frame(bytes),
        1 => batch(bytes),
        2 => nodes(bytes),
        _ => server_frame(bytes),
    }
}

/// Every request that is accepted can be logged, and the log gives the same command.
fn client_frame(bytes: &[u8]) {
    let Ok(frame) = v1::ClientFrame::decode(bytes) else { return };
    assert!(frame.items.len() <= crate::FRAME_ITEMS_MAX);
    let count = frame.items.len();
    let Ok((requests, refusals)) = request::requests(frame.items) else { return };
    assert_eq!(requests.len() + refusals.len(), count, "each item has an answer");
    for request in requests {
        let command = match request {
            request::Request::Command { command, .. } => command,
            request::Request::Open(open) => Command::OpenSession(open.session([0; 32], "who")),
            _ => continue,
        };
        let logged = entry::encode_batch(std::iter::once(&command));
        assert_eq!(entry::decode_batch(&logged).expect("a logged command"), [command]);
    }
}

/// Applying any log entry neither panics nor breaks the table.
fn batch(bytes: &[u8]) {
    let Ok(commands) = entry::decode_batch(bytes) else { return };
    let again = entry::encode_batch(commands.iter());
    assert_eq!(entry::decode_batch(&again).as_ref(), Ok(&commands));
    let mut table = Table::new(5);
    let mut effects = Effects::default();
    for command in commands.into_iter().take(COMMANDS_MAX) {
        let _reply = table.apply_whole(command, &mut effects);
        invariants::all(&table).expect("a consistent table");
    }
}

fn nodes(bytes: &[u8]) {
    let _ = crate::decode_peer_frame(bytes).map(|frame| assert!(frame.encoded_len() <= 2 * bytes.len() + 64));
    let _ = peer::Hello::decode(bytes);
    let _ = peer::HelloAnswer::decode(bytes);
    let _ = peer::SnapshotOffer::decode(bytes);
    let _ = peer::SnapshotPart::decode(bytes);
    let _ = store::Record::decode(bytes);
    let _ = store::Founding::decode(bytes);
    let _ = store::SnapshotHead::decode(bytes);
    let _ = store::MembersChange::decode(bytes);
}

fn server_frame(bytes: &[u8]) {
    let Ok(frame) = v1::ServerFrame::decode(bytes) else { return };
    for item in frame.items {
        match item.what {
            Some(v1::server_item::What::Granted(granted)) => drop(answer::read_grant(&granted)),
            Some(v1::server_item::What::Finished(finished) | v1::server_item::What::Ended(finished)) => {
                let _ = answer::read_end(finished);
            }
            _ => {}
        }
    }
}

/// Valid inputs.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let open = v1::OpenSession {
        secret: vec![7; 16],
        ttl_ms: 10_000,
        label: "label".to_owned(),
        ..v1::OpenSession::default()
    };
    let acquire = |seq, name: &str, mode: v1::Mode| v1::Acquire {
        seq,
        names: vec![name.to_owned()],
        mode: mode.into(),
        wait: true,
        ..v1::Acquire::default()
    };
    let item = |session, what| v1::ClientItem { session, what: Some(what) };
    let items = vec![
        item(0, v1::client_item::What::Open(open)),
        item(1, v1::client_item::What::Acquire(acquire(1, "a", v1::Mode::Exclusive))),
        item(1, v1::client_item::What::Acquire(acquire(2, "a/b", v1::Mode::Shared))),
        item(1, v1::client_item::What::Finish(v1::Finish { seq: 3, target: 1, done_through: 0 })),
        item(1, v1::client_item::What::KeepAlive(v1::KeepAlive { id: 4 })),
        item(1, v1::client_item::What::Close(v1::CloseSession {})),
    ];
    let (requests, _) = request::requests(items.clone()).unwrap_or_default();
    let commands: Vec<_> = requests
        .into_iter()
        .filter_map(|request| match request {
            request::Request::Command { command, .. } => Some(command),
            request::Request::Open(open) => Some(Command::OpenSession(open.session([0; 32], "who"))),
            _ => None,
        })
        .collect();
    let message = peer::PeerMessage { from: 1, to: 2, term: 3, kind: 1, ..peer::PeerMessage::default() };
    let granted = v1::server_item::What::Granted(v1::Granted { token: 9, ..v1::Granted::default() });
    let answers = v1::ServerFrame { items: vec![v1::ServerItem { session: 1, seq: 1, what: Some(granted) }] };
    let with = |what: u8, bytes: Vec<u8>| [vec![what], bytes].concat();
    vec![
        with(0, v1::ClientFrame { items }.encode_to_vec()),
        with(1, entry::encode_batch(commands.iter())),
        with(2, peer::PeerFrame { messages: vec![message] }.encode_to_vec()),
        with(3, answers.encode_to_vec()),
    ]
}

#[cfg(test)]
#[test]
fn inputs_of_the_fuzzer_keep_every_promise() {
    lockkeeper_corpus::replay("wire", seeds(), run);
}
