//! One PostgreSQL.

use std::path::Path;
use std::process::Command;
use std::thread;

use lockkeeper_rig::{Postgres, find};

use crate::{listens, lives, until};

#[test]
fn postgres_has_its_data_after_a_kill_and_none_after_a_wipe() {
    let postgres = Postgres::with(&["-c", "max_connections=17"]);
    assert_eq!(postgres.psql("show max_connections"), "17");
    postgres.psql("create table t (n int); insert into t values (7)");
    let port = postgres.port();
    postgres.kill();
    assert!(!listens(port));
    postgres.start_again();
    assert_eq!((postgres.port(), postgres.psql("select n from t").as_str()), (port, "7"));
    postgres.restart();
    assert_eq!(postgres.psql("select n from t"), "7");
    assert!(postgres.try_psql("select 1/0").unwrap_err().contains("division by zero"));
    postgres.psql("create role worker login");
    assert!(postgres.try_psql_as("worker", "select * from t").unwrap_err().contains("permission denied"));
    postgres.wipe();
    assert_eq!(postgres.psql("select to_regclass('t') is null"), "t");
}

#[test]
fn kill_and_stop_of_postgres_include_its_backends() {
    let postgres = Postgres::start();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| postgres.try_psql("select pg_sleep(60)"));
        let count = "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)'";
        until("it sleeps", || postgres.psql(count) == "1");
        let backend = "select pid from pg_stat_activity where query = 'select pg_sleep(60)'";
        let backend: u32 = postgres.psql(backend).parse().unwrap();
        postgres.stop();
        let state = std::fs::read_to_string(format!("/proc/{backend}/stat")).unwrap();
        assert!(state.contains(") T "), "{state}");
        postgres.cont();
        assert_eq!(postgres.psql(count), "1");
        postgres.kill();
        assert!(!lives(backend));
        assert!(sleeper.join().unwrap().is_err());
    });
}

#[test]
fn dropped_postgres_leaves_no_folder_process_or_shared_memory() {
    let pieces = || std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    for killed in [false, true] {
        let postgres = Postgres::start();
        let (port, pid) = (postgres.port(), postgres.pid().unwrap());
        let folder = postgres.psql("show data_directory");
        let file = std::fs::read_to_string(format!("{folder}/postmaster.pid")).unwrap();
        let piece = file.lines().nth(6).unwrap().split_whitespace().last().unwrap().to_owned();
        let is_there = || pieces().lines().any(|line| line.split_whitespace().nth(1) == Some(&piece));
        assert!(lives(pid) && listens(port) && is_there());
        if killed {
            postgres.kill();
        }
        drop(postgres);
        assert!(!lives(pid) && !listens(port) && !Path::new(&folder).exists() && !is_there());
    }
}

#[test]
fn postgres_with_tls_is_trusted_by_its_authority_only_and_refuses_plain_connections() {
    let postgres = Postgres::with_tls();
    assert_eq!(postgres.psql("select ssl from pg_stat_ssl where pid = pg_backend_pid()"), "t");
    let ask = |query: &str| {
        let url = format!("{}?{query}", postgres.url());
        let output = Command::new(find("psql").unwrap()).args(["-Atc", "select 7", &url]).output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let verified = |ca: &Path| ask(&format!("sslmode=verify-full&sslrootcert={}", ca.display()));
    assert_eq!(verified(postgres.ca()), "7\n");
    let refused = verified(postgres.stranger_ca());
    assert!(refused.contains("SSL error"), "{refused}");
    assert!(ask("sslmode=disable").contains("no encryption"));
}

#[test]
fn postgres_requires_its_password_also_after_a_wipe() {
    let postgres = Postgres::with_password("s3cr'et");
    for _ in 0..2 {
        assert_eq!(postgres.psql("create role worker login password 'own'; select 7"), "7");
        assert_eq!(postgres.try_psql_as("worker:own", "select current_user"), Ok("worker".to_owned()));
        for other in ["worker:other", "postgres:own", "postgres"] {
            let refused = postgres.try_psql_as(other, "select 7").unwrap_err();
            assert!(refused.contains("password"), "{other}: {refused}");
        }
        postgres.wipe();
    }
}
