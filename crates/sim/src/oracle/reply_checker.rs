//! Checks of replies to clients: a grant matches the table and is durable, and the end of a request is final.

use std::collections::BTreeMap;

use lockkeeper_wire::v1::{self, server_item::What};

use super::CheckResult;
use super::table::History;

/// R3: after the reply to an attach, the ends of at most `most` requests are sent at once; the others follow
/// in later turns.
pub(crate) fn ends_of_attach(items: &[v1::ServerItem], most: usize) -> CheckResult {
    for (index, item) in items.iter().enumerate() {
        let Some(What::Attached(_)) = item.what else { continue };
        let is_end =
            |it: &&v1::ServerItem| it.session == item.session && matches!(it.what, Some(What::Ended(_)));
        let ends = items[index + 1..].iter().take_while(is_end).count();
        if ends > most {
            let what =
                format!("s{} attaches, and is sent {ends} ends at once; a part is {most}", item.session);
            return Err(("R3", what));
        }
    }
    Ok(())
}

#[derive(Default)]
pub(crate) struct ReplyChecker {
    /// The first reported end of each request, by session and seq.
    ends: BTreeMap<(u64, u64), String>,
    tokens: BTreeMap<(u64, u64), u64>,
}

impl ReplyChecker {
    /// Checks one item; `has` returns whether an entry would survive a power cut now.
    pub(crate) fn item(
        &mut self,
        item: &v1::ServerItem,
        history: &History,
        has: impl Fn(u64) -> bool,
    ) -> CheckResult {
        let request = (item.session, item.seq);
        match &item.what {
            Some(What::Granted(granted)) => self.granted(request, granted, history, has),
            Some(What::Busy(_)) => self.ended(request, "busy".to_owned()),
            Some(What::Ended(finished)) => self.ended(request, format!("{:?}", finished.end())),
            // The reply to a finish, under the finish's own number, or to a repeated acquire.
            Some(What::Finished(finished)) if finished.end() != v1::End::Gone => {
                self.ended(request, format!("{:?}", finished.end()))
            }
            _ => Ok(()),
        }
    }

    fn granted(
        &mut self,
        request: (u64, u64),
        granted: &v1::Granted,
        history: &History,
        has: impl Fn(u64) -> bool,
    ) -> CheckResult {
        let token = granted.token;
        let Some(hold) = history.granted(token) else {
            return Err(("P1", format!("{request:?} is told token {token}, which was never granted")));
        };
        if (hold.session.0, hold.seq.0) != request {
            return Err((
                "P2",
                format!("{request:?} is told token {token}, which {}/{} has", hold.session, hold.seq),
            ));
        }
        if granted.spare_tokens > hold.spare {
            return Err((
                "P2",
                format!(
                    "{request:?} is told token {token} and {} more, and its block has {}",
                    granted.spare_tokens, hold.spare
                ),
            ));
        }
        if !has(hold.index) {
            return Err((
                "P10",
                format!("token {token} is told before entry {} is durable on a majority", hold.index),
            ));
        }
        if let Some(end) = self.ends.get(&request) {
            return Err(("P7", format!("{request:?} is told token {token} after its end: {end}")));
        }
        match *self.tokens.entry(request).or_insert(token) {
            first if first == token => Ok(()),
            first => Err(("P7", format!("{request:?} was told token {first}, then {token}"))),
        }
    }

    fn ended(&mut self, request: (u64, u64), end: String) -> CheckResult {
        let first = self.ends.entry(request).or_insert_with(|| end.clone());
        // A repeated finish may be answered with `Gone`, which `item` does not check.
        if *first == end {
            Ok(())
        } else {
            Err(("P7", format!("{request:?} ended as {first}, then as {end}")))
        }
    }
}
