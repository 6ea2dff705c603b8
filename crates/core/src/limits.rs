//! Every limit of the table, with its unit, and the reason if it is not obvious.
//!
//! A command that would exceed a limit on contents or numbers is refused with an error; nothing changes for
//! other clients (M1). The limits on the work of one command and on the length of a reply are never an error
//! (M2).

/// Maximum length of a lock name in bytes. A name of this length fits into the key of every backend, together
/// with our prefix.
pub const NAME_BYTES_MAX: usize = 512;
/// Maximum number of segments of a name. It bounds the work of a command, which visits all prefixes of its
/// names (M2).
pub const NAME_SEGMENTS_MAX: usize = 32;
/// Maximum number of names in one request, counted before merging (N1). It bounds the work of one command.
pub const NAMES_PER_REQUEST_MAX: usize = 64;
/// Minimum session ttl in milliseconds. Below it, ordinary scheduling jitter would expire sessions.
pub const TTL_MS_MIN: u64 = 1_000;
/// Maximum session ttl in milliseconds. It limits how long the session of a crashed client stays live.
pub const TTL_MS_MAX: u64 = 3_600_000;
/// Maximum lock-delay in milliseconds.
pub const LOCK_DELAY_MS_MAX: u64 = 3_600_000;
/// Maximum `keep_closed` in milliseconds. The longest known use is "at most once a day".
pub const KEEP_CLOSED_MS_MAX: u64 = 86_400_000;
/// Maximum number of live sessions in a table.
pub const SESSIONS_MAX: usize = 1 << 20;
/// Maximum number of live requests (holds and waiters) of one session. A process must be able to hold a
/// million locks.
pub const REQUESTS_PER_SESSION_MAX: usize = 1 << 20;
/// Maximum number of waiters at one name, not counting requests for names above or below it.
pub const WAITERS_PER_NAME_MAX: usize = 1 << 17;
/// Number of kept answers from which a session's commands are refused until it confirms some by
/// `done_through` (P7). More can be kept, since `Finish` is never refused (R4), and since ends that the
/// client did not request are kept too.
pub const KEPT_ANSWERS_MAX: usize = 4096;
/// Maximum number of names with a stored limit (`SetLimit`), which take memory even without requests.
pub const STORED_LIMITS_MAX: usize = 1 << 16;
/// Maximum number of permits of one name.
pub const PERMITS_MAX: u32 = 1 << 16;
/// Maximum number of closed holds plus live requests with `keep_closed` in a table. Without it, one client
/// could close names without bound (D4).
pub const CLOSED_HOLDS_MAX: usize = 1 << 20;
/// Size of a table's sessions and requests in bytes, as measured by [`Table::bytes`], from which acquires,
/// longer values and new sessions are refused. Kept answers and the texts of breaks can still exceed it. The
/// measure depends only on the replicated state, so every node refuses the same commands.
///
/// [`Table::bytes`]: crate::Table::bytes
pub const TABLE_BYTES_MAX: u64 = 4 << 30;
/// Maximum number of earlier waiters visited to compute a queue position. (For a request of one name, it
/// applies to each mode, with and without subtree, separately.) A greater position is reported as a lower
/// bound, unless an exact count is cheap.
pub const POSITION_VISITS_MAX: usize = 1_000;
/// Maximum number of holds visited to find the holder that conflicts with a busy request; for a subtree
/// request, also the maximum number of names visited below its names.
pub const HOLDER_VISITS_MAX: usize = 64;
/// Maximum number of live tokens in one reply (B3, B4).
pub const LIVE_TOKENS_MAX: usize = 64;
/// Maximum number of holds in one page of a description.
pub const HOLDS_LISTED_MAX: usize = 256;
/// A page of a description ends once its holds have this many bytes, as measured by
/// [`Table::bytes`](crate::Table::bytes).
pub const HOLDS_LISTED_BYTES_MAX: usize = 1 << 17;
/// A permit is not granted ahead of more than this many earlier requests that wait for permits of the same
/// name. It bounds the number of waiters that the check must count.
pub const PERMIT_WAITERS_PASSED_MAX: usize = 1_024;
/// Maximum number of kept answers that one command drops when `done_through` rises. Later commands drop the
/// others.
pub const FORGOTTEN_PER_COMMAND_MAX: usize = 4_096;
/// Budget of one command for the grant pass (G1), in visited names. The removal of requests of ended sessions
/// has a second budget of the same size. The rest is left to [`Command::Resume`](crate::Command::Resume)
/// (M2).
pub const WORK_PER_COMMAND_MAX: usize = 1 << 13;
/// Maximum number of tokens of a cached hold beyond its first (C2).
pub const SPARE_TOKENS_MAX: u32 = 1_023;
/// Maximum time in milliseconds for which a request that doesn't wait is put off because cached holds are in
/// its way (C6).
pub const TRY_WAIT_MS: u64 = 1_000;
/// A request for a subtree that doesn't wait is busy at once if more names below it are held than this,
/// cached or not (C6).
pub const CACHED_BELOW_MAX: usize = 1_024;
/// Maximum number of tokens that a request declares as held by its caller (K1).
pub const HOLDING_MAX: usize = 16;
/// Maximum number of requests visited to find a deadlock (K2). It bounds the work of an acquire, and is
/// enough for a cycle of more than 100 waits.
pub const DEADLOCK_STEPS_MAX: usize = 256;
/// Maximum number of requests in the description of a deadlock: some 16 waits, with a hold of each.
pub const DEADLOCK_LISTED_MAX: usize = 33;
/// Maximum length of a hold's value in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Maximum length of a request's `meta` in bytes.
pub const META_BYTES_MAX: usize = 1024;
/// Maximum length in bytes of a session's label and identity, and of `reason` and `by` of a break.
pub const LABEL_BYTES_MAX: usize = 256;
/// Highest token: 2^53 − 1, so that tokens are exact in JSON, JavaScript and SQL `bigint` (P2).
pub const TOKEN_MAX: u64 = (1 << 53) - 1;
/// Highest argument of `RaiseTokens` for a table that has issued tokens, so that a typing error can't use up
/// its tokens (T3).
pub const RAISE_TOKENS_MAX: u64 = 1 << 52;
/// The newest version of the rules that this binary supports (V1).
pub const RULES_VERSION: u32 = 5;
/// The version of the rules from which on sessions have an identity (S4).
pub const RULES_WITH_IDENTITY: u32 = 2;
/// The version of the rules from which on requests have a time (E3).
pub const RULES_WITH_CLOCK: u32 = 3;
/// The version of the rules from which on a request may limit the queue (Q3).
pub const RULES_WITH_QUEUE_LIMIT: u32 = 4;
/// The version of the rules from which on holds may be cached, and requests say what their callers hold (C1,
/// K1).
pub const RULES_WITH_CACHED_HOLDS: u32 = 5;
