//! Which server to talk to: the one that the URL names, or whichever the sentinels say is the primary now.

use std::fmt;

use crate::error::ConnectError;

use super::settings::{Settings, Topology};

/// Where a link leads.
pub(super) struct Target {
    settings: Settings,
    topology: Topology,
}

impl Target {
    pub(super) fn new(settings: Settings, topology: Topology) -> Self {
        Self { settings, topology }
    }

    /// The server as it is known now.
    pub(super) async fn client(&self) -> Result<redis::Client, ConnectError> {
        match &self.topology {
            Topology::Single(host) => self.settings.client(host),
            Topology::Sentinel { .. } | Topology::Cluster(_) => {
                Err(crate::error::BackendError::new(crate::error::BackendErrorKind::Unsupported, "not yet")
                    .into())
            }
        }
    }

    pub(super) fn has_tls(&self) -> bool {
        self.settings.has_tls()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.topology.fmt(f)
    }
}
