//! Every limit of the table: its name, its unit, and why it has the size it has.
//!
//! Reaching one is a clear error to the client that reached it and changes nothing for anybody else (rule M1). Sizes are chosen so that an honest client never meets them.

/// Longest name of a lock, in bytes. Fits every backend's key with room for our prefix.
pub const NAME_BYTES_MAX: usize = 512;
/// Most segments of a name. Bounds the work of every command: what covers a name lies above one of them (M2).
pub const NAME_SEGMENTS_MAX: usize = 32;
/// Most names in one request, counted before they are merged (N1). Bounds the work of one command.
pub const NAMES_PER_REQUEST_MAX: usize = 64;
/// Shortest session ttl, in milliseconds: below it, ordinary scheduling jitter would end sessions.
pub const TTL_MS_MIN: u64 = 1_000;
/// Longest session ttl, in milliseconds: a crashed holder blocks others for at most this long.
pub const TTL_MS_MAX: u64 = 3_600_000;
/// Longest lock-delay, in milliseconds.
pub const LOCK_DELAY_MS_MAX: u64 = 3_600_000;
/// Longest `keep_closed`, in milliseconds: "at most once a day" is the longest use we know.
pub const KEEP_CLOSED_MS_MAX: u64 = 86_400_000;
/// Most live sessions in a table.
pub const SESSIONS_MAX: usize = 1 << 20;
/// Most live requests (holds and waiters) of one session. A million held locks in one process must work.
pub const REQUESTS_PER_SESSION_MAX: usize = 1 << 20;
/// Most waiters that overlap one name exactly.
pub const WAITERS_PER_NAME_MAX: usize = 1 << 17;
/// Most final answers kept for one session before it must say which of them it has (`done_through`, P7).
pub const KEPT_ANSWERS_MAX: usize = 4096;
/// Most names with a stored limit (`SetLimit`): they take memory while nobody uses them.
pub const STORED_LIMITS_MAX: usize = 1 << 16;
/// Most permits of one name.
pub const PERMITS_MAX: u32 = 1 << 16;
/// Most closed holds plus live requests with `keep_closed`, per table: else one client could close names without end (D4).
pub const CLOSED_HOLDS_MAX: usize = 1 << 20;
/// Most bytes that the sessions and requests of a table may count for, by the measure of [`Table::bytes`]. The measure
/// depends on the replicated state alone, so every node refuses the same command.
///
/// [`Table::bytes`]: crate::Table::bytes
pub const TABLE_BYTES_MAX: u64 = 4 << 30;
/// Most earlier waiters that are looked at to find a request's place in the queue. Places above it are a lower bound
/// where an exact one would cost more.
pub const POSITION_LOOK_MAX: usize = 1_000;
/// Most holds that are looked at to name one that is in the way.
pub const HOLDER_LOOK_MAX: usize = 64;
/// Most tokens of live holds in one answer (B3, B4).
pub const LIVE_TOKENS_MAX: usize = 64;
/// Most holds in one answer that lists them, and the bytes of values, meta data and names after which it lists no more.
pub const HOLDS_LISTED_MAX: usize = 256;
/// See [`HOLDS_LISTED_MAX`].
pub const HOLDS_LISTED_BYTES_MAX: usize = 1 << 17;
/// A permit is not granted past more than this many earlier requests that wait for permits of the same name.
pub const PERMIT_WAITERS_PASSED_MAX: usize = 1_024;
/// Most kept answers that one command forgets when `done_through` rises; the rest goes with later commands.
pub const FORGOTTEN_PER_COMMAND_MAX: usize = 4_096;
/// Most work that one command may leave to the pass of rule G1 and to the end of a session, in names looked at. What
/// is beyond it stays for [`Command::Resume`](crate::Command::Resume) (M2).
pub const WORK_PER_COMMAND_MAX: usize = 1 << 13;
/// Longest value of a hold, in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Longest `meta` of a request, in bytes.
pub const META_BYTES_MAX: usize = 1024;
/// Longest session label, and longest `reason` and `by` of a break, in bytes.
pub const LABEL_BYTES_MAX: usize = 256;
/// Greatest token: 2^53 − 1, so that tokens survive JSON, JavaScript and SQL `bigint` (P2).
pub const TOKEN_MAX: u64 = (1 << 53) - 1;
/// Greatest target of `RaiseTokens` on a table that has issued tokens: a typo must not end the table (T3).
pub const RAISE_TOKENS_MAX: u64 = 1 << 52;
/// The newest version of the rules that this code knows (V1).
pub const RULES_VERSION: u32 = 1;
