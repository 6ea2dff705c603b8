//! The pitfalls, one file for each, in the order in which docs/pitfalls.md shows them.

mod advisory_through_pooler;
mod check_then_act;
mod clock_step;
mod fail_over;
mod fork;
mod leader_does_not_notice;
mod no_fence;
mod no_ttl;
mod pid_file;
mod release_of_anothers;
mod result_ignored;
mod row_without_expiry;
mod short_ttl;
mod slow_call;
mod thundering_herd;
mod two_services;
mod watchdog;
mod write_only_fence;

use crate::Pitfall;

/// All pitfalls.
pub static PITFALLS: [&Pitfall; 18] = [
    &no_ttl::PITFALL,
    &row_without_expiry::PITFALL,
    &watchdog::PITFALL,
    &fork::PITFALL,
    &result_ignored::PITFALL,
    &release_of_anothers::PITFALL,
    &short_ttl::PITFALL,
    &slow_call::PITFALL,
    &check_then_act::PITFALL,
    &no_fence::PITFALL,
    &write_only_fence::PITFALL,
    &leader_does_not_notice::PITFALL,
    &advisory_through_pooler::PITFALL,
    &clock_step::PITFALL,
    &fail_over::PITFALL,
    &pid_file::PITFALL,
    &two_services::PITFALL,
    &thundering_herd::PITFALL,
];
