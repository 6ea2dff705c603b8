//! The search for a node that answers while others do not.

use std::io::copy;
use std::sync::mpsc;

use super::stand_in::StandIn;
use super::*;
use crate::backends::service::addresses::Addresses;
use crate::backends::service::credentials::Credentials;
use crate::backends::service::search::Search;

/// A search over these nodes in their order.
fn search(nodes: [SocketAddr; 2]) -> Search {
    let [one, two] = nodes;
    let url = format!("lockkeeper://{one},{two}").parse().unwrap();
    Search::among(Addresses::of(&url, 0).unwrap(), Credentials::default())
}

/// The first node behaves as a process stopped by SIGSTOP, for which the kernel still accepts connections.
#[tokio::test]
async fn a_node_that_accepts_but_never_answers_does_not_delay_the_others() {
    let (open, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let stopped = listener({
        let (open, closed) = (open.clone(), closed.clone());
        move |mut stream| {
            open.fetch_add(1, Ordering::SeqCst);
            while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
            closed.fetch_add(1, Ordering::SeqCst);
        }
    });
    let service = StandIn::start();
    let mut search = search([stopped, service.address()]);
    let (found, _client) = search.next().await.unwrap();
    assert_eq!(found.to_string(), service.address().to_string());
    assert_eq!(open.load(Ordering::SeqCst), 1, "it was asked first");
    assert_eq!(closed.load(Ordering::SeqCst), 0, "and is given its time");
    drop(search);
    until("nobody waits for it any more", || closed.load(Ordering::SeqCst) == 1).await;
}

/// The slow node may be the leader: if the faster ones cannot serve the caller, the search must not have
/// given it up.
#[tokio::test]
async fn a_slow_node_is_found_in_the_end() {
    let (near, far) = (StandIn::start(), StandIn::start());
    let (answer, answers) = mpsc::channel::<()>();
    let answers = std::sync::Mutex::new(answers);
    let far_away = listener({
        let address = far.address();
        move |mut stream| {
            let _ = answers.lock().unwrap().recv();
            let mut node = TcpStream::connect(address).unwrap();
            let (mut from, mut to) = (node.try_clone().unwrap(), stream.try_clone().unwrap());
            std::thread::spawn(move || copy(&mut from, &mut to));
            let _ = copy(&mut stream, &mut node);
        }
    });
    let mut search = search([far_away, near.address()]);
    let (first, _client) = search.next().await.unwrap();
    assert_eq!(first.to_string(), near.address().to_string());
    answer.send(()).unwrap();
    let (second, _client) = search.next().await.unwrap();
    assert_eq!(second.to_string(), far_away.to_string());
    assert!(search.next().await.is_none(), "each is asked once in a round");
    assert!(search.failures.is_empty(), "{:?}", search.failures);
}

/// A single node is called once, however long it takes. A connection without a byte is no call: the error's
/// text is found by one.
#[tokio::test]
async fn a_single_node_is_called_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let silent = listener({
        let asked = asked.clone();
        move |mut stream| {
            let heard = |stream: &mut TcpStream| stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0);
            if heard(&mut stream) {
                asked.fetch_add(1, Ordering::SeqCst);
            }
            while heard(&mut stream) {}
        }
    });
    let mut search = search([silent, silent]);
    assert!(search.next().await.is_none());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let [said] = &search.failures[..] else { panic!("{:?}", search.failures) };
    let said = said.to_string();
    assert!(said.contains(&silent.to_string()) && said.contains("no answer within"), "{said}");
}
