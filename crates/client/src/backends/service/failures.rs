//! Why the nodes of the service do not serve, in words for users.

use std::error::Error;

use tonic::Status;

/// Metadata key in a node's refusal; the value is the leader's client address, or empty if unknown.
pub(super) const LEADER_METADATA: &str = "lockkeeper-leader";
/// The failure of a node that knows no leader.
pub(super) const NO_LEADER: &str = "it answers, but knows no leader";
/// The failure of a server that does not speak HTTP/2.
const FOREIGN: &str = "something else listens there, which does not speak Lockkeeper's protocol (gRPC)";

/// The innermost cause, which is the most specific one.
pub(super) fn cause(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    // The bytes of any other protocol, read as an HTTP/2 frame, have a length that no frame may have.
    let text = error.to_string();
    if text.contains("frame with invalid size") { FOREIGN.to_owned() } else { text }
}

/// The failure of a call.
pub(super) fn refused(status: &Status) -> String {
    match status.metadata().get(LEADER_METADATA) {
        Some(leader) if leader.is_empty() => NO_LEADER.to_owned(),
        // Only the local transport attaches a source.
        _ if status.source().is_some() => cause(status),
        _ => status.message().to_owned(),
    }
}

/// The failures of the nodes, each with the node's address. `Err` if some node answers, but none knows a leader: the
/// cause is known then.
pub(super) fn summary(mut failures: Vec<String>) -> Result<String, String> {
    failures.sort_unstable();
    let leaderless = failures.iter().filter(|failure| failure.ends_with(NO_LEADER)).count();
    let each = failures.join("; ");
    match leaderless {
        0 => Ok(each),
        all if all == failures.len() => Err(format!("no node leads at the moment: {each}")),
        _ => Err(format!("no majority of the nodes: {each}; start those that do not answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_majority_is_named_with_the_remedy() {
        let [one, two] = ["a:1", "b:2"].map(|node| format!("{node}: {NO_LEADER}"));
        let dead = "c:3: Connection refused".to_owned();
        let said = summary(vec![dead.clone(), one.clone()]);
        assert_eq!(
            said,
            Err(format!("no majority of the nodes: {one}; {dead}; start those that do not answer"))
        );
        assert!(summary(vec![one, two]).unwrap_err().starts_with("no node leads at the moment: a:1"));
        assert_eq!(summary(vec![dead.clone()]), Ok(dead));
    }
}
