//! Looks for nodes that answer, in the order of the addresses, without waiting long for any one: a node that is stopped or
//! cut off accepts connections and says nothing, and must not cost whoever looks its whole limit.
//!
//! Nodes are only asked how they are, which changes nothing. What a tool wants goes to one node at a time, to one that
//! answers: nobody asks for a change twice because an answer is late (P12).

use std::time::Duration;

use tokio::task::JoinSet;

use super::addresses::{Address, Addresses};
use super::driver::{CONNECT_LIMIT, Client, cause, connect};

/// How long one node may take.
pub(super) const NODE_LIMIT: Duration = Duration::from_secs(5);
/// After so long without an answer the next node is asked besides. Longer than the way round the world, so that a cluster
/// that is well is asked once.
const NEXT_AFTER: Duration = Duration::from_millis(300);

/// Rounds over all nodes. What is under way when it is dropped, is dropped.
pub(super) struct Search {
    pub(super) addresses: Addresses,
    /// What each node of this round failed of, for people.
    pub(super) failures: Vec<String>,
    under_way: JoinSet<Result<(Address, Client), (Address, String)>>,
    /// Whom `under_way` asks.
    asked: Vec<Address>,
    /// So many may still be asked in this round.
    left: usize,
}

impl Search {
    /// Its first round begins.
    pub(super) fn among(addresses: Addresses) -> Self {
        let left = addresses.count();
        Self { addresses, failures: Vec::new(), under_way: JoinSet::new(), asked: Vec::new(), left }
    }

    /// All may be asked again.
    pub(super) fn begin_round(&mut self) {
        self.failures.clear();
        self.left = self.addresses.count();
    }

    /// The next node that answers; `None` once the round is over.
    pub(super) async fn next(&mut self) -> Option<(Address, Client)> {
        // Whoever was found before was of no use.
        self.ask_another();
        loop {
            let ended = tokio::select! {
                biased;
                ended = self.under_way.join_next() => ended?,
                () = tokio::time::sleep(NEXT_AFTER), if self.left > 0 => {
                    self.ask_another();
                    continue;
                }
            };
            // Nobody ends such a task but the search itself, when it is dropped.
            let Ok(ended) = ended else { continue };
            let (Ok((address, _)) | Err((address, _))) = &ended;
            self.asked.retain(|asked| asked != address);
            match ended {
                Ok(found) => return Some(found),
                Err((_, why)) => {
                    self.failures.push(why);
                    self.addresses.failed();
                    self.ask_another();
                }
            }
        }
    }

    /// Asks the next one that is not being asked, if the round has one left.
    fn ask_another(&mut self) {
        if self.left == 0 {
            return;
        }
        for _ in 0..=self.addresses.count() {
            let address = self.addresses.take();
            if !self.asked.contains(&address) {
                self.left -= 1;
                self.asked.push(address.clone());
                self.under_way.spawn(reach(address));
                return;
            }
        }
    }
}

/// Asks a node how it is.
async fn reach(address: Address) -> Result<(Address, Client), (Address, String)> {
    let client = match connect(&address, CONNECT_LIMIT).await {
        Ok(client) => client,
        Err(failed) => return Err((address, failed.to_string())),
    };
    let mut asked = client.clone();
    let answer = asked.status(lockkeeper_wire::v1::StatusRequest {});
    let why = match tokio::time::timeout(NODE_LIMIT, answer).await {
        Ok(Ok(_)) => return Ok((address, client)),
        Ok(Err(status)) => cause(&status),
        Err(_) => format!("no answer within {NODE_LIMIT:?}"),
    };
    let why = format!("{address}: {why}");
    Err((address, why))
}
