//! One MariaDB, and a cluster of two.

use lockkeeper_rig::MariaDb;

use crate::{listens, lives, until};

#[test]
fn mariadb_has_its_data_after_a_kill_and_none_after_a_wipe() {
    let server = MariaDb::with(&["--max-connections=17"]);
    assert_eq!(server.sql("SELECT @@max_connections"), "17");
    server.sql("CREATE TABLE t (n INT); INSERT INTO t VALUES (7)");
    let (port, pid) = (server.port(), server.pid().unwrap());
    server.kill();
    assert!(!listens(port) && !lives(pid));
    server.start_again();
    assert_eq!((server.port(), server.sql("SELECT n FROM t").as_str()), (port, "7"));
    server.restart();
    assert_eq!(server.sql("SELECT n FROM t"), "7");
    assert!(server.try_sql("SELECT x").unwrap_err().contains("Unknown column"));
    server.wipe();
    assert_eq!(server.sql("SHOW TABLES"), "");
}

#[test]
fn what_one_node_of_galera_has_committed_the_other_has() {
    let [one, other] = MariaDb::galera();
    one.sql("CREATE TABLE t (n INT PRIMARY KEY); INSERT INTO t VALUES (7)");
    until("it arrives", || other.try_sql("SELECT n FROM t").as_deref() == Ok("7"));
    other.sql("UPDATE t SET n = 8");
    until("it arrives", || one.sql("SELECT n FROM t") == "8");
}
