//! A TCP proxy between one worker and the lock service, whose connections can be cut.
//!
//! Each worker has its own proxy, so a cut affects one worker only. A cut closes the worker's connections at
//! both ends, and every new connection at once. No packets are filtered, so no privileges are needed.

use std::io;
use std::net::Ipv4Addr;

use lockkeeper::backends::KnownBackend;
use lockkeeper::url::Url;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::settings;

/// The proxy of one worker to all hosts of the lock service. Stops when dropped.
pub(super) struct Proxy {
    /// The lock service's address for this worker, through the proxy.
    pub(super) url: String,
    cut: watch::Sender<bool>,
}

impl Proxy {
    /// # Errors
    /// No port of this host can be bound.
    pub(super) fn start(url: &str, hosts: &[(String, u16)], runtime: &Handle) -> io::Result<Self> {
        let (cut, _) = watch::channel(false);
        let mut addresses = Vec::new();
        for host in hosts {
            let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
            addresses.push(listener.local_addr()?.to_string());
            runtime.spawn(serve(listener, host.clone(), cut.subscribe()));
        }
        Ok(Self { url: settings::with_hosts(url, &addresses.join(",")), cut })
    }

    /// Closes all connections, and closes new ones at once.
    pub(super) fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Lets new connections through again.
    pub(super) fn heal(&self) {
        self.cut.send_replace(false);
    }
}

/// The hosts of the URL, to which connections can be cut. A host without a port is left out if its scheme has
/// no default port.
pub(super) fn hosts(url: &str) -> Vec<(String, u16)> {
    let Ok(url) = url.parse::<Url>() else { return Vec::new() };
    let default = KnownBackend::of(&url.scheme).and_then(|known| known.info?.default_port);
    url.hosts.into_iter().filter_map(|host| Some((host.name, host.port.or(default)?))).collect()
}

async fn serve(listener: TcpListener, host: (String, u16), mut cut: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let is_cut = *cut.borrow();
                if let (Ok((here, _)), false) = (accepted, is_cut) {
                    connections.spawn(carry(here, host.clone()));
                }
            }
            changed = cut.changed() => {
                if changed.is_err() {
                    return;
                }
                if *cut.borrow() {
                    connections.shutdown().await;
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards the bytes of one connection. An error ends this connection only; both peers see it closed.
async fn carry(mut here: TcpStream, host: (String, u16)) -> io::Result<()> {
    let mut there = TcpStream::connect(host).await?;
    here.set_nodelay(true)?;
    there.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut here, &mut there).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hosts_of_a_url_are_replaced() {
        for (url, found, becomes) in [
            ("lockkeeper://a", "a 5625", "lockkeeper://X"),
            (
                "redis://u:p%40@a:1,[::1]:2/3?fencing=counter",
                "a 1, ::1 2",
                "redis://u:p%40@X/3?fencing=counter",
            ),
            ("redlock://a,b:7,c?prefix=x", "a 6379, b 7, c 6379", "redlock://X?prefix=x"),
            ("postgres://u@a/db?lock=session", "a 5432", "postgres://u@X/db?lock=session"),
        ] {
            let named: Vec<String> = hosts(url).iter().map(|(name, port)| format!("{name} {port}")).collect();
            assert_eq!(named.join(", "), found, "{url}");
            assert_eq!(settings::with_hosts(url, "X"), becomes);
        }
        for none in ["file:///dir", "memory:", "elsewhere://a"] {
            assert_eq!(hosts(none), []);
        }
    }

    /// Sends a byte and waits for its echo.
    async fn echoed(stream: &mut TcpStream) -> bool {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        stream.write_all(b"x").await.is_ok() && stream.read_u8().await.is_ok()
    }

    #[test]
    fn cut_closes_current_and_new_connections_until_healed() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let there = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = there.local_addr().unwrap().port();
        runtime.spawn(async move {
            while let Ok((mut stream, _)) = there.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        let url = format!("redis://127.0.0.1:{port}");
        let proxy = Proxy::start(&url, &hosts(&url), runtime.handle()).unwrap();
        let way = proxy.url.strip_prefix("redis://").unwrap().to_owned();
        runtime.block_on(async {
            let mut before = TcpStream::connect(&way).await.unwrap();
            assert!(echoed(&mut before).await);
            proxy.cut();
            while echoed(&mut before).await {}
            // The kernel may accept a new connection before the proxy closes it; then no reply arrives on it.
            if let Ok(mut during) = TcpStream::connect(&way).await {
                assert!(!echoed(&mut during).await);
            }
            proxy.heal();
            let mut after = TcpStream::connect(&way).await.unwrap();
            assert!(echoed(&mut after).await);
        });
    }
}
