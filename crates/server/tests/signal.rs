//! SIGTERM stops a node. The only test of this binary, since the signal affects the whole process.

use std::sync::mpsc;
use std::time::Duration;

use lockkeeper_server::{ServerOptions, run};
use nix::sys::signal::{Signal, raise};

const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn sigterm_shuts_a_node_down_gracefully() {
    let data = tempfile::tempdir().unwrap();
    let options = ServerOptions { listen: "127.0.0.1:0".to_owned(), ..ServerOptions::new(data.path()) };
    let (ready, is_ready) = mpsc::channel();
    let (ended, has_ended) = mpsc::channel();
    std::thread::spawn(move || ended.send(run(options, move |running| ready.send(running).unwrap())));
    is_ready.recv_timeout(DEADLINE).expect("the node was to serve");
    raise(Signal::SIGTERM).unwrap();
    has_ended.recv_timeout(DEADLINE).expect("the node was to stop").unwrap();
}
