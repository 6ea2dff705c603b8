//! Metrics, through the `metrics` facade. docs/metrics.md lists them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{Oldest, PrefixLoad, WallTime};
use lockkeeper_replica::{Activity, Load, wait_of};
use lockkeeper_wire::v1::DiskState;
use metrics::{Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::disk_space::DiskReading;
use crate::process::{self, ProcessUsage};

const LOG_SYNC: &str = "lockkeeper_log_sync_seconds";
const TURN: &str = "lockkeeper_turn_seconds";
const TURN_REQUESTS: &str = "lockkeeper_turn_requests";
const REQUESTS: &str = "lockkeeper_requests_total";
const SNAPSHOT_STEP: &str = "lockkeeper_snapshot_step_seconds";
const SNAPSHOT: &str = "lockkeeper_snapshot_seconds";
const SNAPSHOT_BYTES: &str = "lockkeeper_snapshot_bytes";
const TABLES_DIFFER: &str = "lockkeeper_tables_differ_total";
const STREAMS: &str = "lockkeeper_streams";
const RELAYS: &str = "lockkeeper_relayed_streams";
const CONNECTIONS: &str = "lockkeeper_connections";
const STREAMS_REFUSED: &str = "lockkeeper_streams_refused_total";
const QUOTA_REFUSALS: &str = "lockkeeper_quota_refusals_total";
const LEADS: &str = "lockkeeper_leads";
const LEADER: &str = "lockkeeper_leader";
const TERM: &str = "lockkeeper_term";
const APPLIED: &str = "lockkeeper_applied_index";
const COMMITTED: &str = "lockkeeper_committed_index";
const LAST_TOKEN: &str = "lockkeeper_last_token";
const MEMBERS: &str = "lockkeeper_members";
const MEMBERS_HEARD: &str = "lockkeeper_members_heard";
const SESSIONS: &str = "lockkeeper_sessions";
const HOLDS: &str = "lockkeeper_holds";
const WAITERS: &str = "lockkeeper_waiters";
const CACHED_NAMES: &str = "lockkeeper_cached_names";
const TABLE_BYTES: &str = "lockkeeper_table_bytes";
const PREFIX_HOLDS: &str = "lockkeeper_prefix_holds";
const PREFIX_WAITERS: &str = "lockkeeper_prefix_waiters";
const PREFIX_OLDEST_HOLD: &str = "lockkeeper_prefix_oldest_hold_age_seconds";
const PREFIX_LONGEST_WAITER: &str = "lockkeeper_prefix_longest_waiter_age_seconds";
const OLDEST_HOLD: &str = "lockkeeper_oldest_hold_age_seconds";
const LONGEST_WAITER: &str = "lockkeeper_longest_waiter_age_seconds";
const WAITS: &str = "lockkeeper_queue_wait_seconds";
const GRANTS: &str = "lockkeeper_grants_total";
const EXPIRED: &str = "lockkeeper_expired_sessions_total";
const TIMED_OUT: &str = "lockkeeper_timed_out_requests_total";
const BREAKS: &str = "lockkeeper_breaks_total";
const RECALLS: &str = "lockkeeper_recalls_total";
const RENEW_SLACK: &str = "lockkeeper_renew_slack_ratio";
const CERTIFICATE_ENDS: &str = "lockkeeper_certificate_ends_timestamp_seconds";
const TRACES_DROPPED: &str = "lockkeeper_traces_dropped_total";
const BACKUPS: &str = "lockkeeper_backups_total";
const LAST_BACKUP: &str = "lockkeeper_last_backup_timestamp_seconds";
const CLOCK_RATE: &str = "lockkeeper_clock_correction_ratio";
const REFUSALS: &str = "lockkeeper_refusals_total";
const AUDIT_FAILURES: &str = "lockkeeper_audit_failures_total";
const FILES_UNUSABLE: &str = "lockkeeper_unusable_files";
const DISK_USED: &str = "lockkeeper_disk_used_bytes";
const DISK_FREE: &str = "lockkeeper_disk_free_bytes";
const DISK_FULL_IN: &str = "lockkeeper_disk_full_in_seconds";
const DISK_LOW: &str = "lockkeeper_disk_low";
const DISK_FULL: &str = "lockkeeper_disk_full";
const BUILD_INFO: &str = "lockkeeper_build_info";
// The names that Prometheus' own clients give to these.
const PROCESS_CPU: &str = "process_cpu_seconds_total";
const PROCESS_MEMORY: &str = "process_resident_memory_bytes";
const PROCESS_FILES: &str = "process_open_fds";
const PROCESS_FILES_MAX: &str = "process_max_fds";
const PROCESS_STARTED: &str = "process_start_time_seconds";

/// Registers the description and unit of every metric. To be called once the recorder is installed.
pub(crate) fn describe() {
    describe_histogram!(
        LOG_SYNC,
        "Duration of one append to the log with its sync: every acquire waits for one"
    );
    describe_histogram!(TURN, "Duration of one turn of the replica, the sync of the log included");
    describe_histogram!(
        TURN_REQUESTS,
        "Requests of clients that one turn has handled: the batch that shares one sync"
    );
    describe_counter!(REQUESTS, "Requests of clients that the replica has handled, keep-alives included");
    describe_histogram!(
        SNAPSHOT_STEP,
        "Time of each uninterrupted piece of snapshot work on the thread of the replica"
    );
    describe_histogram!(SNAPSHOT, "Time from the first step of a snapshot until it is durable");
    describe_histogram!(SNAPSHOT_BYTES, "Size of a snapshot");
    describe_counter!(TABLES_DIFFER, "How often this leader found that the table of another node differs");
    describe_gauge!(STREAMS, "Open streams of clients");
    describe_gauge!(RELAYS, "Streams of clients that this node relays to the leader");
    describe_gauge!(CONNECTIONS, "Open connections of clients");
    describe_counter!(
        STREAMS_REFUSED,
        "Streams that the node has ended because of the behaviour of their clients"
    );
    describe_counter!(QUOTA_REFUSALS, "Refusals at a limit or quota");
    describe_counter!(BACKUPS, "Backups that this node has made on its schedule, or failed to make");
    describe_gauge!(
        LAST_BACKUP,
        "When the newest backup was taken, in seconds since 1970, as the leader found it"
    );
    describe_gauge!(LEADS, "1 if this node leads, else 0");
    describe_gauge!(LEADER, "The id of the leader; 0 if none is known");
    describe_gauge!(TERM, "The term of the last election");
    describe_gauge!(APPLIED, "The last log entry that this node has applied");
    describe_gauge!(COMMITTED, "The last log entry that this node knows to be committed");
    describe_gauge!(LAST_TOKEN, "The last token that was issued");
    describe_gauge!(MEMBERS, "Members of the cluster");
    describe_gauge!(MEMBERS_HEARD, "Members that the leader hears, itself included; 0 at other nodes");
    describe_gauge!(SESSIONS, "Live sessions");
    describe_gauge!(HOLDS, "Holds, closed ones included");
    describe_gauge!(WAITERS, "Waiting requests");
    describe_gauge!(CACHED_NAMES, "Names that are held by cached holds");
    describe_gauge!(TABLE_BYTES, "Size of the sessions and requests in the table");
    describe_gauge!(PREFIX_HOLDS, "Holds of the names with this prefix");
    describe_gauge!(PREFIX_WAITERS, "Waiters at the names with this prefix");
    describe_gauge!(
        PREFIX_OLDEST_HOLD,
        "Age of the oldest hold of the names with this prefix; 0 if there is none"
    );
    describe_gauge!(
        PREFIX_LONGEST_WAITER,
        "How long the longest waiter at the names with this prefix has waited; 0 if there is none"
    );
    describe_gauge!(OLDEST_HOLD, "Age of the oldest hold; 0 if there is none");
    describe_gauge!(LONGEST_WAITER, "How long the longest waiter has waited; 0 if there is none");
    describe_histogram!(
        WAITS,
        "How long waiters had waited when they were granted, to a third, while this node led"
    );
    describe_counter!(GRANTS, "Grants that this node has made as the leader");
    describe_counter!(
        EXPIRED,
        "Sessions that expired while this node led: their clients were not heard for the ttl"
    );
    describe_counter!(
        TIMED_OUT,
        "Requests that left the queue since their time was over, while this node led"
    );
    describe_counter!(BREAKS, "Breaks of operators, while this node led");
    describe_counter!(RECALLS, "Recalls of cached holds, while this node led");
    describe_histogram!(RENEW_SLACK, "The part of its ttl that a session had left when a keep-alive arrived");
    describe_gauge!(CERTIFICATE_ENDS, "When the certificate of this node ends, in seconds since 1970");
    describe_counter!(
        TRACES_DROPPED,
        "Sampled acquires that were served and whose traces were not sent: too many at once"
    );
    describe_gauge!(
        CLOCK_RATE,
        "How much faster the clock of this node runs than its uncorrected hardware clock"
    );
    describe_counter!(
        REFUSALS,
        "Callers that were refused for lack of a permission or an identity, or at a quota"
    );
    describe_counter!(AUDIT_FAILURES, "Records that could not be written to the audit file");
    describe_gauge!(
        FILES_UNUSABLE,
        "Kinds of files (TLS; tokens and permissions) that have changed and can't be used: the old ones stay in force"
    );
    describe_gauge!(DISK_USED, "Size of the data directory; NaN: its disk does not answer");
    describe_gauge!(DISK_FREE, "Free space of the disk of the data directory; NaN: it does not answer");
    describe_gauge!(
        DISK_FULL_IN,
        "When the disk will be full if its free space falls as in the last ten minutes; +Inf: it does not fall"
    );
    describe_gauge!(DISK_LOW, "1 if little of the disk is free, or it will be full within an hour");
    describe_gauge!(DISK_FULL, "1 if the disk has no room for the next segment of the log");
    describe_gauge!(BUILD_INFO, "Always 1; the label is the version of the software");
    describe_counter!(PROCESS_CPU, "Processor time that this process has used, in whole seconds");
    describe_gauge!(PROCESS_MEMORY, "Memory of this process that is in RAM");
    describe_gauge!(PROCESS_FILES, "Open files of this process, connections included");
    describe_gauge!(PROCESS_FILES_MAX, "The most files that this process may have open");
    describe_gauge!(PROCESS_STARTED, "When this process has started, in seconds since 1970");
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    gauge!(PROCESS_STARTED).set(process::started().as_secs_f64());
    counter!(AUDIT_FAILURES).increment(0);
    files_unusable(0);
    for what in ["denied", "unauthenticated", "quota"] {
        counter!(REFUSALS, "what" => what).increment(0);
    }
    // Counters start at 0, since an increase is visible only relative to an earlier value.
    counter!(TABLES_DIFFER).increment(0);
    counter!(TRACES_DROPPED).increment(0);
    for reason in ["too-slow", "protocol"] {
        counter!(STREAMS_REFUSED, "reason" => reason).increment(0);
    }
    for what in [
        "connections",
        "streams-of-sessions",
        "calls-of-sessions",
        "relays",
        "watches",
        "table",
        "requests-per-second",
    ] {
        counter!(QUOTA_REFUSALS, "what" => what).increment(0);
    }
    streams(0);
    relays(0);
    connections(0);
}

/// Records the duration of a write and sync of the log.
pub(crate) fn synced(took: Duration) {
    histogram!(LOG_SYNC).record(took.as_secs_f64());
}

/// Records a turn: its number of requests, and its duration including the log's sync.
pub(crate) fn turn(requests: usize, took: Duration) {
    histogram!(TURN).record(took.as_secs_f64());
    counter!(REQUESTS).increment(requests as u64);
    histogram!(TURN_REQUESTS).record(requests as f64);
}

/// Records the time that one step of a snapshot took on the replica's thread.
pub(crate) fn snapshot_step(took: Duration) {
    histogram!(SNAPSHOT_STEP).record(took.as_secs_f64());
}

/// Records a complete, durable snapshot: how long it took, and its size.
pub(crate) fn snapshot(took: Duration, bytes: u64) {
    histogram!(SNAPSHOT).record(took.as_secs_f64());
    histogram!(SNAPSHOT_BYTES).record(bytes as f64);
}

/// Counts a difference between this node's table and another node's.
pub(crate) fn differs() {
    counter!(TABLES_DIFFER).increment(1);
}

/// Reports the number of streams that this node relays.
pub(crate) fn relays(count: usize) {
    gauge!(RELAYS).set(count as f64);
}

/// Sets the number of open streams.
pub(crate) fn streams(open: usize) {
    gauge!(STREAMS).set(open as f64);
}

/// Sets the number of open client connections.
pub(crate) fn connections(open: usize) {
    gauge!(CONNECTIONS).set(open as f64);
}

/// Counts a stream that was ended because of its client's behaviour.
pub(crate) fn stream_refused(reason: &'static str) {
    counter!(STREAMS_REFUSED, "reason" => reason).increment(1);
}

/// Counts sampled acquires that are not traced, or whose traces are not sent.
pub(crate) fn traces_dropped(count: usize) {
    if count > 0 {
        counter!(TRACES_DROPPED).increment(count as u64);
    }
}

/// Counts a refusal because of a quota, of which `what` names the kind in words.
pub(crate) fn quota_refused(what: &'static str) {
    counter!(QUOTA_REFUSALS, "what" => what.replace(' ', "-")).increment(1);
}

/// Counts a caller that was refused.
pub(crate) fn refused(what: &'static str) {
    counter!(REFUSALS, "what" => what).increment(1);
}

/// Counts a record that could not be written to the audit file.
pub(crate) fn audit_failed() {
    counter!(AUDIT_FAILURES).increment(1);
}

/// Sets how many kinds of files have changed and can't be used.
pub(crate) fn files_unusable(kinds: usize) {
    gauge!(FILES_UNUSABLE).set(kinds as f64);
}

/// Sets the metrics of the data directory's disk; `None`: it does not answer.
pub(crate) fn disk(reading: Option<DiskReading>) {
    let state = reading.map(|it| it.state);
    gauge!(DISK_USED).set(reading.map_or(f64::NAN, |it| it.used as f64));
    gauge!(DISK_FREE).set(reading.map_or(f64::NAN, |it| it.free as f64));
    let full_in = reading.map(|it| it.full_in.map_or(f64::INFINITY, |left| left.as_secs_f64()));
    gauge!(DISK_FULL_IN).set(full_in.unwrap_or(f64::NAN));
    gauge!(DISK_LOW).set(f64::from(u8::from(matches!(state, Some(DiskState::Low | DiskState::Full)))));
    gauge!(DISK_FULL).set(f64::from(u8::from(state == Some(DiskState::Full))));
}

/// Sets the metrics of this process.
pub(crate) fn process(usage: &ProcessUsage) {
    let ProcessUsage { cpu, memory, files, files_max } = usage;
    counter!(PROCESS_CPU).absolute(cpu.as_secs());
    for (name, value) in [(PROCESS_MEMORY, memory), (PROCESS_FILES, files), (PROCESS_FILES_MAX, files_max)] {
        if let Some(value) = value {
            gauge!(name).set(*value as f64);
        }
    }
}

/// Sets the metrics of a node's state. `before`: the counts at the last call.
pub(crate) fn load(load: &Load, before: &Activity) {
    gauge!(LEADS).set(f64::from(u8::from(load.leads)));
    gauge!(LEADER).set(load.leader as f64);
    gauge!(TERM).set(load.term as f64);
    gauge!(APPLIED).set(load.applied as f64);
    gauge!(COMMITTED).set(load.committed as f64);
    gauge!(LAST_TOKEN).set(load.last_token as f64);
    gauge!(MEMBERS).set(load.members as f64);
    gauge!(MEMBERS_HEARD).set(load.answering as f64);
    gauge!(SESSIONS).set(load.usage.sessions as f64);
    gauge!(HOLDS).set(load.usage.requests.saturating_sub(load.usage.waiters) as f64);
    gauge!(WAITERS).set(load.usage.waiters as f64);
    gauge!(CACHED_NAMES).set(load.cached_names as f64);
    gauge!(TABLE_BYTES).set(load.usage.bytes as f64);
    gauge!(OLDEST_HOLD).set(age(load.oldest.hold));
    gauge!(LONGEST_WAITER).set(age(load.oldest.waiter));
    let waits = histogram!(WAITS);
    record_new(&waits, &load.activity.waits, &before.waits, |part| wait_of(part).as_secs_f64());
    counter!(GRANTS).absolute(load.activity.grants);
    counter!(EXPIRED).absolute(load.activity.expired);
    counter!(TIMED_OUT).absolute(load.activity.timed_out);
    counter!(BREAKS).absolute(load.activity.breaks);
    counter!(RECALLS).absolute(load.activity.recalls);
    let slack = histogram!(RENEW_SLACK);
    let parts = load.activity.slack.len() as f64;
    record_new(&slack, &load.activity.slack, &before.slack, |part| (part as f64 + 0.5) / parts);
}

/// Records what was counted since `before`, each part with its middle value.
fn record_new(to: &Histogram, now: &[u64], before: &[u64], middle: impl Fn(usize) -> f64) {
    for (part, (now, before)) in now.iter().zip(before).enumerate() {
        to.record_many(middle(part), usize::try_from(now.saturating_sub(*before)).unwrap_or(usize::MAX));
    }
}

/// The age in seconds of something that began then; 0 if there is none.
fn age(since: Option<WallTime>) -> f64 {
    let now = WallTime::from(SystemTime::now());
    since.and_then(|since| since.until(now)).unwrap_or_default().as_secs_f64()
}

/// Sets the load of a prefix of names, and its oldest hold and waiter.
pub(crate) fn prefix(load: &PrefixLoad, oldest: Oldest) {
    for (name, value) in [
        (PREFIX_HOLDS, load.holds as f64),
        (PREFIX_WAITERS, load.waiters as f64),
        (PREFIX_OLDEST_HOLD, age(oldest.hold)),
        (PREFIX_LONGEST_WAITER, age(oldest.waiter)),
    ] {
        gauge!(name, "prefix" => load.prefix.to_string()).set(value);
    }
}

/// Sets the time at which this node's certificate ends.
pub(crate) fn certificate_ends(since_1970: Duration) {
    gauge!(CERTIFICATE_ENDS).set(since_1970.as_secs_f64());
}

/// Registers the counters of backups. They start at 0: an increase is visible only relative to an
/// earlier value.
pub(crate) fn backups_are_scheduled() {
    for result in ["done", "failed"] {
        counter!(BACKUPS, "result" => result).increment(0);
    }
}

/// Counts a backup that was made at this time.
pub(crate) fn backup_done(taken: SystemTime) {
    counter!(BACKUPS, "result" => "done").increment(1);
    last_backup(taken);
}

/// Counts a backup that could not be made.
pub(crate) fn backup_failed() {
    counter!(BACKUPS, "result" => "failed").increment(1);
}

/// Sets when the newest backup was taken.
pub(crate) fn last_backup(taken: SystemTime) {
    gauge!(LAST_BACKUP).set(taken.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
}

/// Sets how much faster this node's clock runs than its hardware clock, as a part of 1.
pub(crate) fn clock_correction(ratio: f64) {
    gauge!(CLOCK_RATE).set(ratio);
}

/// Reports the state of this process to systemd, if systemd has started it.
pub(crate) fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the service manager could not be told: {error}");
    }
}
