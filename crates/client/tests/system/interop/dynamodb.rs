//! python_dynamodb_lock with `dynamodb://…?attributes=python`.

use std::path::Path;

use lockkeeper::backends::dynamodb::init;
use lockkeeper_rig::DynamoDb;

use crate::interop::prove;
use crate::interop::scenarios::World;
use crate::interop::script::Script;

struct Table(DynamoDb);

impl Table {
    async fn start() -> Self {
        let table = Self(DynamoDb::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign")));
        assert!(init(&table.url()).await.unwrap());
        table
    }
}

impl World for Table {
    type Peer = Script;

    fn url(&self) -> String {
        let endpoint = self.0.url();
        format!(
            "dynamodb://locks?attributes=python&region=us-east-1&credentials=none&poll_ms=20&endpoint={endpoint}"
        )
    }

    fn peer(&self) -> Script {
        Script::python_dynamodb_lock(&self.0.url(), "locks")
    }
}

prove! {
    Table::start().await =>
    two_peers_exclude_each_other,
    a_peers_hold_is_named_in_our_error_and_granted_after_its_release,
    our_hold_excludes_peers_until_its_release,
    our_shared_holds_exclude_peers_until_the_last_release,
    a_crashed_peers_lock_is_granted_to_us,
    our_crashed_holders_lock_is_granted_to_a_peer,
}
