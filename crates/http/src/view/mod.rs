//! Locks, sessions and nodes in JSON: one shape for HTTP/JSON, the console, and `--json` of the command.
//!
//! Responsible for the names of the fields, which `docs/json.md` lists. Contains no rule. The names are
//! those of the protobuf schema (`lockkeeper.v1`). A field that is absent is unknown or does not apply:
//! other lock services know less than ours.
//!
//! Reading order: `lock.rs`, `session.rs`, `node.rs`, `audit.rs`; `content.rs` (bytes in JSON).

mod audit;
pub mod content;
mod lock;
mod node;
mod session;

pub use audit::{AuditRecordView, AuditTrailView};
pub use lock::{
    BreakResult, BreakView, HoldStateView, HoldView, LockView, Mode, TokenStateView, TokenView, WaiterView,
};
pub use node::{DiskView, MemberView, MembersView, NodeView, PartView, RoleView};
pub use session::{EndSessionResult, EndedSessionView, SessionView};
use utoipa::PartialSchema;
use utoipa::openapi::{RefOr, Schema};

/// The shapes by name, in the order in which the page shows them.
#[must_use]
pub fn schemas() -> Vec<(&'static str, RefOr<Schema>)> {
    vec![
        ("Lock", LockView::schema()),
        ("Hold", HoldView::schema()),
        ("HoldState", HoldStateView::schema()),
        ("Mode", Mode::schema()),
        ("Waiter", WaiterView::schema()),
        ("Session", SessionView::schema()),
        ("EndedSession", EndedSessionView::schema()),
        ("EndSessionResult", EndSessionResult::schema()),
        ("Token", TokenView::schema()),
        ("TokenState", TokenStateView::schema()),
        ("Break", BreakView::schema()),
        ("BreakResult", BreakResult::schema()),
        ("Node", NodeView::schema()),
        ("Role", RoleView::schema()),
        ("Disk", DiskView::schema()),
        ("Members", MembersView::schema()),
        ("Member", MemberView::schema()),
        ("Part", PartView::schema()),
        ("AuditTrail", AuditTrailView::schema()),
        ("AuditRecord", AuditRecordView::schema()),
    ]
}
