//! `mysql:` on real servers of MariaDB: `cargo xtask test -p lockkeeper-mysql`. Plain `cargo test` leaves it
//! out.

mod contract;
mod galera;
mod row;
mod server;
mod session;
mod shedlock;

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::MariaDb;

const SECOND: Duration = Duration::from_secs(1);

/// A client of this server, with further parameters: `lock=session`.
async fn client(server: &MariaDb, parameters: &str) -> Locks {
    Locks::connect(&format!("{}?{parameters}", server.url())).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The error of connecting.
async fn refused(url: &str) -> String {
    match Locks::connect(url).await {
        Ok(_) => panic!("{url}: it is not refused"),
        Err(error) => error.to_string(),
    }
}
