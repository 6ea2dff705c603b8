//! MySQL and MariaDB backend (`mysql://`): locks in an existing database.
//!
//! `?lock=` in the address selects one of two kinds: lease rows with an expiry (`row`, the default), or locks
//! of a connection by `GET_LOCK` (`session`). `?layout=shedlock` uses the table of `ShedLock` as lease rows.
//! `settings` parses the address, `connect` opens connections, `lane` runs statements on a pool of them,
//! `answer` translates the server's errors. Only SQL that both MySQL 8 and MariaDB 10.6 document is used.

mod answer;
mod connect;
mod findings;
mod lane;
mod row;
mod session;
mod settings;

use std::sync::Arc;

pub use row::SCHEMA_SQL;
pub use session::SCHEMA_SQL as SESSION_SCHEMA_SQL;

use lockkeeper_backend::io::SharedLeaseThread;
use lockkeeper_backend::{Backend, BackendInfo, ConnectError, Url};
use settings::LockKind;

/// What users see of it.
pub const INFO: BackendInfo = BackendInfo {
    example: "mysql://host/database?lock=row",
    summary: "MySQL, MariaDB: lease rows (`lock=row`) or locks of a connection (`lock=session`)",
    schemes: &["mysql", "mariadb"],
    default_port: Some(3306),
    has_password: true,
    excludes: "`lock=session`: who takes the same name with `GET_LOCK` (`key=`); `layout=shedlock`: ShedLock",
    excluded_by: "`lock=session`: who takes the same name with `GET_LOCK` (`key=`); `layout=shedlock`: ShedLock",
    pages: &["mysql-row", "mysql-session"],
    connect: |url| Box::pin(connect(url)),
};

/// One lease thread for all clients of the process.
static IO: SharedLeaseThread = SharedLeaseThread::new();

/// Opens a client; fails if the server does not answer.
async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    match LockKind::of(url)? {
        LockKind::Row => row::connect(url).await,
        LockKind::ShedLock => row::shedlock::connect(url).await,
        LockKind::Session => session::connect(url).await,
    }
}
