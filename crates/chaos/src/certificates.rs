//! The TLS files of a cluster, and the change of their authority as docs/operating.md tells operators to do
//! it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

const CLUSTER: &str = "chaos";
const FILES: [&str; 5] = ["ca.pem", "node.pem", "node.key", "client.pem", "client.key"];

/// The files that nodes and clients read now, and those of each authority.
pub(crate) struct ClusterTls {
    program: PathBuf,
    folder: PathBuf,
    hosts: Vec<Ipv4Addr>,
    authorities: u32,
}

/// Some of a cluster's TLS files: what a client trusts, and what it shows.
#[derive(Clone, Copy)]
pub(crate) enum Era {
    /// The files that are in use.
    Now,
    /// Those of the last authority alone.
    Newest,
    /// Those of the one before it.
    Before,
}

impl ClusterTls {
    /// Makes a first authority, and certificates for nodes on these hosts and for their clients.
    pub(crate) fn new(program: &Path, folder: &Path, hosts: Vec<Ipv4Addr>) -> Result<Self> {
        let (program, folder) = (program.to_owned(), folder.join("tls"));
        fs::create_dir_all(folder.join("now"))?;
        let mut made = Self { program, folder, hosts, authorities: 0 };
        made.make_authority()?;
        FILES.iter().try_for_each(|file| made.replace(file, &[Era::Newest]))?;
        Ok(made)
    }

    /// Makes another authority, which is [`Era::Newest`] from now on; nothing that is in use changes.
    pub(crate) fn make_authority(&mut self) -> Result {
        self.authorities += 1;
        let folder = self.folder(Era::Newest);
        let run = |words: &[&str], more: &[String]| -> Result {
            let mut command = Command::new(&self.program);
            let output =
                command.arg("tls").arg(words[0]).arg(&folder).args(&words[1..]).args(more).output()?;
            match output.status.success() {
                true => Ok(()),
                false => Err(String::from_utf8_lossy(&output.stderr).into()),
            }
        };
        run(&["init", "--cluster-name", CLUSTER], &[])?;
        // A node that joins has a new id.
        let hosts: Vec<_> = self.hosts.iter().flat_map(|host| ["--host".into(), host.to_string()]).collect();
        run(&["issue", "--any-node"], &hosts)
    }

    /// Replaces a file that is in use by those of these authorities, one after the other.
    pub(crate) fn replace(&self, file: &str, by: &[Era]) -> Result {
        let mut all = String::new();
        for era in by {
            all += &fs::read_to_string(self.folder(*era).join(file))?;
        }
        let (now, new) = (self.folder(Era::Now).join(file), self.folder.join("new"));
        fs::write(&new, all)?;
        Ok(fs::rename(new, now)?)
    }

    /// For `serve`.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let folder = self.folder(Era::Now);
        let option = |(option, file)| [format!("--tls-{option}"), folder.join(file).display().to_string()];
        [("cert", "node.pem"), ("key", "node.key"), ("ca", "ca.pem")].into_iter().flat_map(option).collect()
    }

    /// The options of a client's URL, which trusts one authority and shows the certificate of another.
    pub(crate) fn query(&self, trusts: Era, shows: Era) -> String {
        let path = |era, file| self.folder(era).join(file).display().to_string();
        let [ca, cert, key] = [path(trusts, "ca.pem"), path(shows, "client.pem"), path(shows, "client.key")];
        format!("?tls-ca={ca}&tls-cert={cert}&tls-key={key}")
    }

    fn folder(&self, era: Era) -> PathBuf {
        match era {
            Era::Now => self.folder.join("now"),
            Era::Newest => self.folder.join(self.authorities.to_string()),
            Era::Before => self.folder.join(self.authorities.saturating_sub(1).to_string()),
        }
    }
}
