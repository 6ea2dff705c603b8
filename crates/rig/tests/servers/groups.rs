//! Groups of servers.

use lockkeeper_rig::{PgBouncer, Postgres, RedisCluster, Sentinel};

use crate::{DURABLE, listens, until};

#[test]
fn clients_of_a_pgbouncer_share_one_connection_by_transaction() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::with(&postgres, &["default_pool_size=1"]);
    let backend = bouncer.psql("select pg_backend_pid()");
    assert_eq!(bouncer.psql("select pg_backend_pid()"), backend, "two clients, one connection");
    assert_ne!(postgres.psql("select pg_backend_pid()"), backend);
    let port = bouncer.port();
    bouncer.kill();
    assert!(!listens(port));
    bouncer.start_again();
    bouncer.stop();
    bouncer.cont();
    assert_eq!(bouncer.psql("select 7"), "7");
    drop(bouncer);
    assert!(!listens(port));
    assert_eq!(postgres.psql("select 7"), "7");
}

#[test]
fn sentinels_promote_the_replica_of_a_dead_primary() {
    let sentinel = Sentinel::with(DURABLE);
    let former = sentinel.primary();
    assert_ne!(former.port(), sentinel.replica().port());
    former.cli(&["SET", "k", "7"]);
    // Polled, because WAIT covers only the writes of its own connection.
    until("it is copied", || sentinel.replica().try_cli(&["GET", "k"]) == Ok("7".into()));
    former.kill();
    sentinel.wait_for_another_than(former);
    let primary = sentinel.primary();
    assert_ne!(primary.port(), former.port());
    assert_eq!(primary.cli(&["GET", "k"]), "7");
    primary.cli(&["SET", "k", "8"]);
    // The sentinels make the former primary a replica, which closes its connections.
    former.start_again();
    until("two servers are in step again", || {
        let replica = |command: &[&str]| sentinel.replica().try_cli(command);
        replica(&["ROLE"]).is_ok_and(|role| role.starts_with("slave"))
            && replica(&["GET", "k"]) == Ok("8".into())
    });
    let ports: Vec<u16> =
        sentinel.addresses().split(',').map(|at| at.rsplit_once(':').unwrap().1.parse().unwrap()).collect();
    assert!(ports.len() == 3 && ports.iter().all(|port| listens(*port)));
    drop(sentinel);
    assert!(!ports.iter().any(|port| listens(*port)));
}

#[test]
fn cluster_redirects_clients_to_the_node_of_a_key_also_after_a_move() {
    let cluster = RedisCluster::with(3, DURABLE);
    // The slots of these keys are in the shares of the first, the second and the third node.
    let keys = ["b", "c", "a"];
    for (key, node) in keys.iter().zip(cluster.nodes()) {
        assert_eq!(cluster.node_of(key).port(), node.port(), "{key}");
        node.cli(&["SET", key, "7"]);
    }
    let [first, second, third] = cluster.nodes() else { panic!("there are three nodes") };
    assert!(first.try_cli(&["GET", "a"]).unwrap_err().contains(&format!("127.0.0.1:{}", third.port())));
    cluster.move_slot_of("a", 1);
    assert_eq!(second.cli(&["GET", "a"]), "7");
    assert!(third.try_cli(&["GET", "a"]).unwrap_err().contains(&format!("127.0.0.1:{}", second.port())));
    second.kill();
    second.start_again();
    cluster.wait_until_whole();
    assert_eq!((second.cli(&["GET", "a"]), first.cli(&["GET", "b"])), ("7".to_owned(), "7".to_owned()));
    let ports: Vec<u16> = cluster.nodes().iter().map(lockkeeper_rig::Redis::port).collect();
    drop(cluster);
    assert!(!ports.iter().any(|port| listens(*port)));
}
