//! Paths, and the names of nodes, in the layout of Curator's recipes: below the lock's node, each client that
//! holds or waits has an ephemeral node `_c_GUID-lock-SEQUENCE`. ZooKeeper appends the sequence; the lowest
//! holds the lock. The node of a shared request has `__READ__` in place of `lock-`, and holds unless another
//! kind of node is before it. The node of a permit request has `permit-` before `lock-`; other clients treat
//! it as exclusive.
//!
//! With `recipe=kazoo` the names are those of kazoo's locks: `GUID__lock__SEQUENCE`, and `__rlock__` of a
//! shared request.
//!
//! With every recipe, nodes of Curator, kazoo and other clients with such names are contenders, too: a
//! request waits for those before it. The other clients do not see each other's nodes.

use lockkeeper_backend::leased::PERMITS_MAX;
use lockkeeper_backend::percent_decode;
use lockkeeper_core::{LockName, Mode, ModeKind};
use zookeeper_client::CreateMode;

/// The parent of encoded names if the URL has no path.
const ROOT: &str = "/lockkeeper";
/// The part of a contender's name before the sequence, whether the contender is shared, and whose name it is:
/// of Curator's mutex and read/write lock, and of kazoo's locks.
const MARKERS: [(&str, bool, Library); 5] = [
    ("-lock-", false, Library::Curator),
    ("__WRIT__", false, Library::Curator),
    ("__READ__", true, Library::Curator),
    ("__lock__", false, Library::Kazoo),
    ("__rlock__", true, Library::Kazoo),
];
/// Precedes the exclusive marker in the name of a permit request.
const PERMIT: &str = "-permit";

/// The mapping of lock names to nodes.
#[derive(Clone, Debug)]
pub(super) struct NodeLayout {
    /// Empty, or an absolute path.
    root: String,
    is_plain: bool,
    recipe: Recipe,
}

/// The recipe of another client whose names a request's node has. Clients of different recipes don't exclude
/// each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Recipe {
    /// Curator's `InterProcessMutex`.
    Mutex,
    /// Curator's `InterProcessReadWriteLock`.
    ReadWrite,
    /// kazoo's `Lock`, `ReadLock` and `WriteLock`.
    Kazoo,
}

impl NodeLayout {
    pub(super) fn encoded(root: &str, recipe: Recipe) -> Self {
        let root = if root.is_empty() { ROOT } else { root };
        Self { root: root.to_owned(), is_plain: false, recipe }
    }

    pub(super) fn plain(root: &str, recipe: Recipe) -> Self {
        Self { root: root.to_owned(), is_plain: true, recipe }
    }

    /// The node whose children are the lock's contenders.
    pub(super) fn folder(&self, name: &LockName) -> String {
        let name = name.as_str();
        let name = if self.is_plain { name.to_owned() } else { encoded(name) };
        format!("{}/{name}", self.root)
    }

    /// The node below which all locks are.
    pub(super) fn root(&self) -> &str {
        if self.root.is_empty() { "/" } else { &self.root }
    }

    /// Whether nodes below a lock's node may be locks, too.
    pub(super) fn is_nested(&self) -> bool {
        self.is_plain
    }

    /// The lock whose contenders are below the node, if it can have any.
    pub(super) fn name_of(&self, folder: &str) -> Option<LockName> {
        let name = folder.strip_prefix(&self.root)?.strip_prefix('/')?;
        let name = if self.is_plain { name.to_owned() } else { percent_decode(name)? };
        LockName::parse(&name).ok()
    }

    /// The name of a contender's node, up to the sequence.
    pub(super) fn node(&self, guid: &str, mode: Mode) -> String {
        let (protected, marker) = match (self.recipe, mode) {
            (Recipe::Kazoo, Mode::Shared) => ("", "__rlock__"),
            (Recipe::Kazoo, _) => ("", "__lock__"),
            (_, Mode::Shared) => ("_c_", "-__READ__"),
            (Recipe::Mutex, _) => ("_c_", "-lock-"),
            (Recipe::ReadWrite, _) => ("_c_", "-__WRIT__"),
        };
        let permit = if mode.kind() == ModeKind::Permit { PERMIT } else { "" };
        format!("{protected}{guid}{permit}{marker}")
    }

    /// The mode of a lock's node and its parents.
    pub(super) fn folder_mode(&self) -> CreateMode {
        match self.recipe {
            // ZooKeeper removes empty containers, which Curator creates, too.
            Recipe::Mutex | Recipe::ReadWrite => CreateMode::Container,
            // As kazoo's own: a `Lock` of kazoo creates its path once, and fails if it is gone later.
            Recipe::Kazoo => CreateMode::Persistent,
        }
    }

    /// Whether there are permits. Not beside kazoo: its `Semaphore` has no place in the queue, and would
    /// neither exclude them nor be excluded.
    pub(super) fn has_permits(&self) -> bool {
        self.recipe != Recipe::Kazoo
    }
}

/// Encodes `/`, which separates nodes, and the characters and names that ZooKeeper refuses.
fn encoded(name: &str) -> String {
    let refused = |c: char| matches!(c, '%' | '/' | '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    // ZooKeeper's own nodes are below `/zookeeper`.
    let is_reserved = matches!(name, "." | ".." | "zookeeper");
    let mut encoded = String::with_capacity(name.len());
    for (at, c) in name.char_indices() {
        if refused(c) || (is_reserved && at == 0) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                encoded.push_str(&format!("%{byte:02X}"));
            }
        } else {
            encoded.push(c);
        }
    }
    encoded
}

/// The client library whose locks wait for a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Library {
    Curator,
    Kazoo,
}

/// The name of a contender's node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Contender<'a> {
    pub(super) node: &'a str,
    sequence: i32,
    pub(super) kind: ModeKind,
    pub(super) library: Library,
}

impl<'a> Contender<'a> {
    /// `None` for a node that is no contender's.
    pub(super) fn parse(node: &'a str) -> Option<Self> {
        let marked = MARKERS.iter().find_map(|&(marker, is_shared, library)| {
            let at = node.rfind(marker)?;
            let kind = match is_shared {
                true => ModeKind::Shared,
                false if node[..at].trim_end_matches('-').ends_with(PERMIT) => ModeKind::Permit,
                false => ModeKind::Exclusive,
            };
            Some((&node[at + marker.len()..], kind, library))
        });
        // Some clients have no GUID.
        let unmarked = || Some((node.strip_prefix("lock-")?, ModeKind::Exclusive, Library::Curator));
        let (digits, kind, library) = marked.or_else(unmarked)?;
        // The sequence is padded to ten characters; with a sign it may have eleven.
        let sequence = digits.parse().ok().filter(|_| digits.len() >= 10)?;
        Some(Self { node, sequence, kind, library })
    }

    /// Whether this contender is before `other` in the queue.
    ///
    /// The sequence is a signed 32-bit counter of the lock's node and wraps around, so this is a wrapping
    /// comparison. (Curator and kazoo compare the text: there, a node after the overflow is before all
    /// others.)
    pub(super) fn is_before(&self, other: &Self) -> bool {
        self.sequence.wrapping_sub(other.sequence) < 0
    }

    /// The contenders among `children`, in order.
    pub(super) fn queue(children: &'a [String]) -> Vec<Self> {
        let mut queue: Vec<Self> = children.iter().filter_map(|child| Self::parse(child)).collect();
        if let Some(&any) = queue.first() {
            queue.sort_unstable_by_key(|one| one.sequence.wrapping_sub(any.sequence));
        }
        queue
    }

    /// Whether `self`, later in the queue, waits for `earlier`.
    pub(super) fn waits_for(&self, earlier: &Self) -> bool {
        earlier.is_before(self) && !(self.kind == ModeKind::Shared && earlier.kind == ModeKind::Shared)
    }
}

/// How many contenders at the front of a queue hold the lock, or may hold it if they are permit requests.
pub(super) fn holders(queue: &[Contender<'_>]) -> usize {
    let together = |kind: ModeKind| queue.iter().take_while(|one| one.kind == kind).count();
    match queue.first().map(|first| first.kind) {
        None => 0,
        Some(ModeKind::Exclusive) => 1,
        Some(ModeKind::Shared) => together(ModeKind::Shared),
        Some(ModeKind::Permit) => together(ModeKind::Permit).min(PERMITS_MAX as usize),
    }
}

/// Decodes any bytes, for the fuzzer.
pub fn fuzz(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Contender::parse(text);
    for layout in [NodeLayout::encoded("", Recipe::Mutex), NodeLayout::plain("/locks", Recipe::ReadWrite)] {
        if let Some(name) = layout.name_of(text) {
            assert_eq!(layout.name_of(&layout.folder(&name)), Some(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text).unwrap()
    }

    #[test]
    fn nodes_are_those_of_curators_recipes() {
        let guid = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed";
        let layout = NodeLayout::plain("/locks", Recipe::Mutex);
        assert_eq!(layout.folder(&name("orders/42")), "/locks/orders/42");
        assert_eq!(layout.node(guid, Mode::Exclusive), format!("_c_{guid}-lock-"));
        assert_eq!(layout.node(guid, Mode::Shared), format!("_c_{guid}-__READ__"));
        let layout = NodeLayout::plain("", Recipe::ReadWrite);
        assert_eq!(layout.folder(&name("orders/42")), "/orders/42");
        assert_eq!(layout.node(guid, Mode::Exclusive), format!("_c_{guid}-__WRIT__"));
        for recipe in [Recipe::Mutex, Recipe::ReadWrite] {
            let node = NodeLayout::plain("", recipe).node(guid, Mode::Permit { of: Some(2) }) + "0000000007";
            assert_eq!(Contender::parse(&node).unwrap().kind, ModeKind::Permit, "{node}");
        }
    }

    #[test]
    fn nodes_are_those_of_kazoos_locks_with_its_recipe() {
        let guid = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed";
        let layout = NodeLayout::plain("/locks", Recipe::Kazoo);
        assert_eq!(layout.node(guid, Mode::Exclusive), format!("{guid}__lock__"));
        assert_eq!(layout.node(guid, Mode::Shared), format!("{guid}__rlock__"));
    }

    /// With every recipe, a request finds its own node in the queue, and of its own kind.
    #[test]
    fn own_node_is_a_contender() {
        for recipe in [Recipe::Mutex, Recipe::ReadWrite, Recipe::Kazoo] {
            for mode in [Mode::Exclusive, Mode::Shared] {
                let node = NodeLayout::plain("", recipe).node("0-1", mode) + "0000000007";
                assert_eq!(Contender::parse(&node).unwrap().kind, mode.kind(), "{node}");
            }
        }
    }

    #[test]
    fn every_name_comes_back_from_its_path() {
        for layout in [NodeLayout::encoded("", Recipe::Mutex), NodeLayout::encoded("/a/b", Recipe::Mutex)] {
            for text in ["a", "a/b", "100%/x", ".", "..", "zookeeper", "\u{e000}x", "%2F", "ä ö"] {
                let folder = layout.folder(&name(text));
                assert_eq!(layout.name_of(&folder), Some(name(text)), "{folder}");
                assert_eq!(folder.matches('/').count(), layout.root().matches('/').count() + 1, "{folder}");
            }
        }
        let plain = NodeLayout::plain("/a", Recipe::Mutex);
        assert_eq!(plain.name_of("/a/b/c"), Some(name("b/c")));
        assert_eq!(plain.name_of("/other"), None);
    }

    #[test]
    fn contenders_of_all_known_clients_are_recognized() {
        let (exclusive, shared, permit) = (ModeKind::Exclusive, ModeKind::Shared, ModeKind::Permit);
        let (curator, kazoo) = (Library::Curator, Library::Kazoo);
        for (node, sequence, kind, library) in [
            ("_c_1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed-lock-0000000007", 7, exclusive, curator),
            ("_c_1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed-__READ__0000000007", 7, shared, curator),
            ("_c_1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed-__WRIT__2147483647", i32::MAX, exclusive, curator),
            ("_c_1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed-permit-lock-0000000007", 7, permit, curator),
            ("_c_1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed-permit-__WRIT__0000000007", 7, permit, curator),
            ("lock-0000000000", 0, exclusive, curator),
            ("1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed__lock__-2147483648", i32::MIN, exclusive, kazoo),
            ("1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed__rlock__-000000001", -1, shared, kazoo),
        ] {
            assert_eq!(Contender::parse(node), Some(Contender { node, sequence, kind, library }), "{node}");
        }
        for node in ["", "lock-", "lock-7", "leases", "42", "lock-00000000x7", "block-1234567890"] {
            assert_eq!(Contender::parse(node), None, "{node}");
        }
    }

    #[test]
    fn order_survives_the_overflow_of_the_sequence() {
        let children: Vec<String> = [-2_147_483_647_i32, 2_147_483_647, -2_147_483_648, 2_147_483_646]
            .iter()
            .map(|sequence| format!("x-lock-{sequence:010}"))
            .collect();
        let queue: Vec<i32> = Contender::queue(&children).iter().map(|one| one.sequence).collect();
        assert_eq!(queue, [2_147_483_646, 2_147_483_647, -2_147_483_648, -2_147_483_647]);
        let [first, second] =
            ["lock-2147483647", "lock--2147483648"].map(|node| Contender::parse(node).unwrap());
        assert!(first.is_before(&second) && !second.is_before(&first));
    }

    #[test]
    fn shared_contenders_hold_together_up_to_the_first_exclusive_one() {
        let children = |nodes: &[&str]| nodes.iter().map(|node| (*node).to_owned()).collect::<Vec<_>>();
        for (nodes, wanted) in [
            (&[][..], 0),
            (&["lock-0000000001", "__READ__0000000002"][..], 1),
            (&["__READ__0000000003", "__rlock__0000000001", "lock-0000000004", "__READ__0000000005"][..], 2),
        ] {
            let children = children(nodes);
            assert_eq!(holders(&Contender::queue(&children)), wanted, "{nodes:?}");
        }
    }
}
