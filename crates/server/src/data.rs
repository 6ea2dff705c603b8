//! A node's data directory at a start. In an empty one, the node bootstraps a single-node cluster, or becomes
//! a candidate for a cluster of several nodes; otherwise it recovers from the content.
//!
//! A *candidate* here is a node that has an identity and no bootstrap record yet, not a candidate of an
//! election.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use lockkeeper_core::{Restorer, Table, limits};
use lockkeeper_replica::disk::{Disk, DiskFile};
use lockkeeper_replica::storage::{self, Existing, Log, OpenError, Opened, SnapshotReader, Snapshots};
use lockkeeper_replica::{Change, Members, Recovered};
use lockkeeper_wire::store::{Candidate, ConfChange, EntryKind, Founding, Listed, Member, MembersChange};
use prost::Message;

use crate::disk;
use crate::error::ServeError;
use crate::options::ServerOptions;

/// 2026-01-01T00:00:00Z in seconds of Unix time; the tokens of new tables count from here (T1).
const TOKENS_EPOCH_SECONDS: u64 = 1_767_225_600;
/// The default id of the node of a single-node cluster.
const NODE: u64 = 1;

/// The reason why no node may start with these data any more. Stored as a file, named after the reason, that
/// contains an error text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unusable {
    /// The node's table differed from that of its cluster.
    WrongTable,
    /// Log entries that the node had acknowledged are missing.
    EntriesLost,
}

impl Unusable {
    const ALL: [Self; 2] = [Self::WrongTable, Self::EntriesLost];

    fn file(self) -> &'static str {
        match self {
            Self::WrongTable => "wrong-table",
            Self::EntriesLost => "lost-entries",
        }
    }

    fn error(self, directory: &Path, why: String) -> ServeError {
        let directory = directory.to_owned();
        match self {
            Self::WrongTable => ServeError::Condemned { directory, why },
            Self::EntriesLost => ServeError::LostBefore { directory, why },
        }
    }
}

/// Most bytes read from the file of an [`Unusable`] reason.
const REASON_BYTES_MAX: u64 = 4096;

/// The state that a node starts from.
pub(crate) struct Data<D: Disk> {
    pub(crate) founding: Founding,
    pub(crate) recovered: Recovered,
    pub(crate) log: Log<D>,
    pub(crate) snapshots: Snapshots<D>,
}

impl<D: Disk> Data<D> {
    /// The members according to the data, including changes in the log that may not be committed yet.
    pub(crate) fn nodes(&self) -> BTreeMap<u64, Member> {
        let Recovered { members, entries, .. } = &self.recovered;
        let mut nodes = members.nodes.clone();
        let mut leaving = members.nodes.keys().copied().find(|node| members.is_leaving(*node));
        let changes =
            entries.iter().filter(|entry| entry.kind() == EntryKind::Members && entry.index > members.at);
        for entry in changes {
            let change = ConfChange::decode(&*entry.data).and_then(|it| MembersChange::decode(&*it.context));
            // A change that can't be decoded is reported by the replica, when it applies the entry.
            match change.ok().and_then(|change| change.what) {
                Some(Change::Add(member)) => drop(nodes.insert(member.node, member)),
                Some(Change::Remove(node)) => leaving = Some(node),
                Some(Change::Leave(_)) => drop(leaving.take().and_then(|node| nodes.remove(&node))),
                Some(Change::Promote(_)) | None => {}
            }
        }
        nodes
    }
}

/// The content of a data directory.
#[expect(clippy::large_enum_variant, reason = "there is one, at the start")]
pub(crate) enum DirectoryContents<D: Disk> {
    /// The data of a member of a cluster.
    Data(Data<D>),
    /// The identity only: the node is about to become part of a cluster.
    Candidate(Candidate),
}

/// The addresses that this node gives to others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses<'a> {
    /// For clients.
    pub(crate) client: &'a str,
    /// For peers; empty for a node without peers.
    pub(crate) peer: &'a str,
}

/// Opens the data. In an empty directory, a node whose options name no other nodes bootstraps a single-node
/// cluster; otherwise the node becomes a candidate, or remains the candidate that the directory contains.
///
/// # Errors
/// The directory can't be read or written, is damaged or of a newer version, is marked as unusable, or is of
/// another node; a candidate's options name no other nodes; there is no valid first token.
pub(crate) fn open<D: Disk>(
    disk: &D,
    options: &ServerOptions,
    addresses: Addresses<'_>,
) -> Result<DirectoryContents<D>, ServeError> {
    refuse_condemned(disk, &options.data)?;
    let is_alone = options.cluster.is_empty() && options.join.is_none();
    match storage::open(disk, storage_options(options)).map_err(failed(options))? {
        Opened::Existing(existing) => {
            is_node(options, existing.founding.node)?;
            recover(disk, &options.data, existing).map(DirectoryContents::Data)
        }
        Opened::Empty if is_alone => {
            let (directory, node) = (options.data.display(), options.node.unwrap_or(1));
            tracing::info!(
                node,
                "`{directory}` is empty: node {node} founds a new cluster of its own, with an empty table of locks; a node \
                 of a cluster whose data are lost needs `--join` and a new id"
            );
            found(disk, options, &alone(options, addresses, SystemTime::now())?).map(DirectoryContents::Data)
        }
        Opened::Empty => {
            let candidate = candidate(options, addresses, id()?, SystemTime::now())?;
            stand(disk, options, &candidate)?;
            Ok(DirectoryContents::Candidate(candidate))
        }
        Opened::Candidate(kept) => {
            let member = kept.member.clone().unwrap_or_default();
            is_node(options, member.node)?;
            if is_alone {
                return Err(ServeError::NotAlone { directory: options.data.clone(), node: member.node });
            }
            if options.rejoin && kept.nodes.is_empty() {
                // It may have another id than the options say, given by the cluster.
                let node = member.node;
                let member = Member { node, ..self::member(options, addresses, member.incarnation) };
                let candidate = Candidate { member: Some(member), ..kept };
                stand(disk, options, &candidate)?;
                return Ok(DirectoryContents::Candidate(candidate));
            }
            if kept.nodes.iter().any(|listed| !listed.incarnation.is_empty()) {
                // This node has promised to form a cluster with exactly these incarnations, and other nodes
                // may have bootstrapped that cluster already: the stored candidate must not change.
                return Ok(DirectoryContents::Candidate(kept));
            }
            let candidate = candidate(options, addresses, member.incarnation, SystemTime::now())?;
            stand(disk, options, &candidate)?;
            Ok(DirectoryContents::Candidate(candidate))
        }
    }
}

/// Writes the bootstrap record, and then recovers the data as [`open`] does.
///
/// # Errors
/// Those of [`open`].
pub(crate) fn found<D: Disk>(
    disk: &D,
    options: &ServerOptions,
    founding: &Founding,
) -> Result<Data<D>, ServeError> {
    let existing = storage::found(disk, storage_options(options), founding).map_err(failed(options))?;
    recover(disk, &options.data, existing)
}

/// Stores a candidate's identity durably.
///
/// # Errors
/// The directory can't be written.
pub(crate) fn stand<D: Disk>(
    disk: &D,
    options: &ServerOptions,
    candidate: &Candidate,
) -> Result<(), ServeError> {
    storage::stand(disk, candidate).map_err(failed(options))
}

/// Marks the data as unusable, so that no later start accepts them. A restart would not repair them: a wrong
/// table may be in a snapshot already, and lost entries stay lost.
///
/// # Errors
/// The disk's error.
pub(crate) fn condemn(disk: &impl Disk, verdict: Unusable, why: &str) -> io::Result<()> {
    let mut file = disk.create(verdict.file())?;
    file.write_at(0, why.as_bytes())?;
    file.sync()?;
    disk.sync_names()
}

/// Refuses a directory with files of others and none of a node. Called before the directory is owned, since
/// that creates a file in it.
///
/// # Errors
/// [`ServeError::NotOurs`], or the directory can't be read.
pub(crate) fn refuse_foreign(directory: &Path) -> Result<(), ServeError> {
    let names = disk::names_in(directory).map_err(ServeError::Directory)?;
    let is_ours = |name: &str| storage::is_data(name) || Unusable::ALL.iter().any(|it| it.file() == name);
    match names.first() {
        Some(found) if !names.iter().any(|name| is_ours(name)) => {
            Err(ServeError::NotOurs { directory: directory.to_owned(), found: found.clone() })
        }
        _ => Ok(()),
    }
}

fn refuse_condemned(disk: &impl Disk, directory: &Path) -> Result<(), ServeError> {
    let read = || {
        let names = disk.list()?;
        let Some(verdict) = Unusable::ALL.into_iter().find(|it| names.iter().any(|name| name == it.file()))
        else {
            return Ok(None);
        };
        let file = disk.open(verdict.file())?;
        let mut bytes = vec![0; file.size()?.min(REASON_BYTES_MAX) as usize];
        file.read_at(0, &mut bytes)?;
        Ok(Some((verdict, String::from_utf8_lossy(&bytes).into_owned())))
    };
    match read().map_err(ServeError::system("read why the data must not be used"))? {
        None => Ok(()),
        Some((verdict, why)) => Err(verdict.error(directory, why)),
    }
}

fn storage_options(options: &ServerOptions) -> storage::LogOptions {
    storage::LogOptions { segment_bytes: options.segment_bytes }
}

fn failed(options: &ServerOptions) -> impl Fn(OpenError) -> ServeError {
    |source| ServeError::Open { directory: options.data.clone(), source }
}

fn is_node(options: &ServerOptions, found: u64) -> Result<(), ServeError> {
    match options.node {
        Some(node) if node != found && !options.rejoin => {
            Err(ServeError::AnotherNode { directory: options.data.clone(), found, given: node })
        }
        _ => Ok(()),
    }
}

fn alone(options: &ServerOptions, addresses: Addresses<'_>, now: SystemTime) -> Result<Founding, ServeError> {
    let tokens_above = first_tokens(options.tokens_above, now)?;
    let member = member(options, addresses, id()?);
    Ok(Founding {
        cluster: id()?,
        node: member.node,
        incarnation: member.incarnation.clone(),
        members: vec![member],
        tokens_above,
        rules: limits::RULES_VERSION,
    })
}

fn candidate(
    options: &ServerOptions,
    addresses: Addresses<'_>,
    incarnation: Vec<u8>,
    now: SystemTime,
) -> Result<Candidate, ServeError> {
    // With `rejoin`, a node that the list does not name joins the cluster of the list.
    let is_founder = |node: &u64| options.cluster.contains_key(node);
    let listed = options.cluster.iter().filter(|_| options.node.as_ref().is_some_and(is_founder));
    Ok(Candidate {
        member: Some(member(options, addresses, incarnation)),
        tokens_above: first_tokens(options.tokens_above, now)?,
        rules: limits::RULES_VERSION,
        nodes: listed
            .map(|(&node, address)| Listed { node, peer_address: address.clone(), incarnation: Vec::new() })
            .collect(),
    })
}

fn member(options: &ServerOptions, addresses: Addresses<'_>, incarnation: Vec<u8>) -> Member {
    let node = options.node.unwrap_or(NODE);
    Member {
        node,
        incarnation,
        peer_address: options.cluster.get(&node).map_or(addresses.peer, String::as_str).to_owned(),
        client_address: addresses.client.to_owned(),
    }
}

/// The number above which a new table's tokens start: the greater of `asked` and the microseconds since 2026.
/// The latter are above every token of an earlier table in this directory, provided that its tokens did not
/// start above the clock and that it granted fewer than a million a second. Wall clocks are used for first
/// tokens only (T1).
pub(crate) fn first_tokens(asked: Option<u64>, now: SystemTime) -> Result<u64, ServeError> {
    let max = limits::RAISE_TOKENS_MAX;
    if let Some(above) = asked.filter(|above| *above > max) {
        return Err(ServeError::TokensAbove { above, max });
    }
    let unix = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let since = unix.checked_sub(u128::from(TOKENS_EPOCH_SECONDS) * 1_000_000);
    match (since, asked) {
        (None, None) => Err(ServeError::ClockBehind),
        (None, Some(above)) => Ok(above),
        (Some(since), asked) => Ok(u64::try_from(since).unwrap_or(max).min(max).max(asked.unwrap_or(0))),
    }
}

pub(crate) fn id() -> Result<Vec<u8>, ServeError> {
    random::<16>().map(Vec::from)
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], ServeError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| ServeError::system("draw random numbers")(io::Error::from(error)))?;
    Ok(bytes)
}

fn recover<D: Disk>(disk: &D, directory: &Path, existing: Existing<D>) -> Result<Data<D>, ServeError> {
    let Existing { founding, snapshot, hard_state, entries, entry_bytes, log, snapshots, mut leftovers } =
        existing;
    let seed = u64::from_le_bytes(random()?);
    let (snapshot_index, snapshot_term) =
        snapshot.as_ref().map_or((0, 0), |snapshot| (snapshot.head().index, snapshot.head().term));
    let members = snapshot.as_ref().and_then(|snapshot| snapshot.head().members.clone());
    let members = members.map_or_else(|| Members::founded(&founding), Members::from);
    let table = match snapshot {
        Some(snapshot) => read_table(snapshot, directory, seed)?,
        None => Table::with_rules(seed, rules(&founding)?),
    };
    // Old snapshots are removed only after the newest one was read to its end.
    if let Err(error) = leftovers.run(disk) {
        tracing::warn!(%error, "old snapshots in `{}` could not be removed: {error}", directory.display());
    }
    let recovered = Recovered {
        table,
        snapshot_index,
        snapshot_term,
        members,
        hard_state: Some(hard_state),
        entries,
        entry_bytes,
    };
    Ok(Data { founding, recovered, log, snapshots })
}

/// The version of the table's rules that all bootstrap nodes knew.
fn rules(founding: &Founding) -> Result<u32, ServeError> {
    let (rules, known) = (founding.rules.max(1), limits::RULES_VERSION);
    if rules > known { Err(ServeError::NewerRules { rules, known }) } else { Ok(rules) }
}

fn read_table<D: Disk>(
    mut snapshot: SnapshotReader<D>,
    directory: &Path,
    seed: u64,
) -> Result<Table, ServeError> {
    let index = snapshot.head().index;
    let failed = |source: OpenError| ServeError::Open { directory: directory.to_owned(), source };
    let refused = |why: String| ServeError::Snapshot { directory: directory.to_owned(), index, why };
    let mut restorer = Restorer::new(seed);
    while let Some(piece) = snapshot.next_piece().map_err(failed)? {
        restorer.push(&piece).map_err(|error| refused(error.to_string()))?;
    }
    let digest = restorer.digest().map(|digest| digest.to_le_bytes().to_vec());
    if digest != snapshot.tail().map(|tail| tail.digest.clone()) {
        return Err(refused("its digest is another than the one it was written with".to_owned()));
    }
    restorer.finish().map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper_replica::disk::memory::MemoryDisk;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn first_tokens_are_above_the_microseconds_since_2026_and_above_tokens_above() {
        let day = TOKENS_EPOCH_SECONDS + 86_400;
        assert_eq!(first_tokens(None, at(day)).unwrap(), 86_400_000_000);
        assert_eq!(first_tokens(Some(7), at(day)).unwrap(), 86_400_000_000);
        assert_eq!(first_tokens(Some(86_400_000_001), at(day)).unwrap(), 86_400_000_001);
    }

    #[test]
    fn clock_before_2026_needs_tokens_above() {
        for clock in [at(0), at(TOKENS_EPOCH_SECONDS - 1)] {
            let text = first_tokens(None, clock).unwrap_err().to_string();
            assert!(text.contains("--tokens-above") && text.contains("2026"), "{text}");
            assert_eq!(first_tokens(Some(0), clock).unwrap(), 0);
            assert_eq!(first_tokens(Some(99), clock).unwrap(), 99);
        }
    }

    #[test]
    fn condemned_data_are_refused_with_the_stored_reason() {
        let (disk, options) = (MemoryDisk::new(), ServerOptions::new("here"));
        let addresses = Addresses { client: "client:1", peer: "" };
        assert!(open(&disk, &options, addresses).is_ok(), "it founds a cluster");
        condemn(&disk, Unusable::WrongTable, "its table was another").unwrap();
        disk.crash(|_| 0);
        disk.restart();
        let Err(error) = open(&disk, &options, addresses) else { panic!("it starts") };
        let text = error.to_string();
        for words in ["`here`", "its table was another", "remove the file `wrong-table`"] {
            assert!(text.contains(words), "no {words:?} in {text}");
        }
        disk.remove("wrong-table").unwrap();
        assert!(open(&disk, &options, addresses).is_ok(), "whoever knows better can have it");
        condemn(&disk, Unusable::EntriesLost, "its log ends at entry 3").unwrap();
        let Err(error) = open(&disk, &options, addresses) else { panic!("it starts") };
        let text = error.to_string();
        assert!(text.contains("are damaged") && text.contains("its log ends at entry 3"), "{text}");
    }

    #[test]
    fn first_token_above_the_maximum_is_refused() {
        let text = first_tokens(Some(u64::MAX), at(TOKENS_EPOCH_SECONDS)).unwrap_err().to_string();
        assert!(text.contains(&u64::MAX.to_string()), "{text}");
    }
}
