//! Every limit of the table: its name, its unit, and why it has the size it has.
//!
//! Reaching one is a clear error to the client that reached it and changes nothing for anybody else (DESIGN
//! section 4, rule M1). Sizes are chosen so that an honest client never meets them.

/// Longest name of a lock, in bytes. Fits every backend's key with room for our prefix.
pub const NAME_BYTES_MAX: usize = 512;
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
