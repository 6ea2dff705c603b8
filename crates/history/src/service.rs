//! The name of a lock service in a history.

/// A URL without what differs between clients: `scheme://host,host/path`, with neither credentials nor
/// parameters. `of`: the host, process or client beyond which the same URL names another service; empty if it
/// names the same one everywhere.
#[must_use]
pub fn service_of(url: &str, of: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    let service = match url.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find('/').unwrap_or(rest.len());
            let (hosts, path) = rest.split_at(end);
            let hosts = hosts.rsplit_once('@').map_or(hosts, |(_, hosts)| hosts);
            format!("{scheme}://{hosts}{path}")
        }
        None => url.to_owned(),
    };
    if of.is_empty() { service } else { format!("{service} of {of}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_has_no_credentials_and_no_parameters() {
        for (url, service) in [
            ("lockkeeper://a:1,b:2", "lockkeeper://a:1,b:2"),
            ("postgres://u:p@ss@h:5/db?lock=row", "postgres://h:5/db"),
            ("file:///tmp/a@b?history=/h", "file:///tmp/a@b"),
            ("memory:x", "memory:x"),
        ] {
            assert_eq!(service_of(url, ""), service);
        }
        assert_eq!(service_of("memory:x", "process 5"), "memory:x of process 5");
    }
}
