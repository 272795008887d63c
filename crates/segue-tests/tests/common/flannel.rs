//! Nodes of flanneld itself, built by `lab/go-build` from the Go module proxy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use segue_lab::{Host, Process, skip, which};
use segue_tests::theirs;

use crate::ground::{ETCD, Fleet, PATIENCE, until};

/// Returns a fleet, and the program flanneld; `None` if the test cannot run here, which is recorded.
pub(crate) fn fleet(test: &str) -> Option<(Fleet, PathBuf)> {
    // flanneld ends without it, also where it makes rules with nft.
    if which("iptables").is_none() {
        skip(test, "not installed: iptables");
        return None;
    }
    let program = theirs::program(test, "flanneld")?;
    Some((Fleet::new(test)?, program))
}

/// A node that runs flanneld. Its subnet file outlives the process.
pub(crate) struct Flanneld {
    process: Option<Process>,
    program: PathBuf,
    file: PathBuf,
    path: String,
}

impl Flanneld {
    /// Starts flanneld on a host of its own, 198.18.0.N, and waits for its subnet.
    pub(crate) fn start(fleet: &Fleet, program: &Path, n: u8) -> (Host, Flanneld) {
        let host = Host::new("flannel").unwrap();
        fleet.plug(&host, n);
        let mut made = Flanneld::new(fleet, program, n);
        made.launch(&host);
        made.until_up(&host);
        (host, made)
    }

    /// Prepares the flanneld of the host 198.18.0.N. It finds `segue` by its PATH.
    pub(crate) fn new(fleet: &Fleet, program: &Path, n: u8) -> Flanneld {
        let folder = fleet.program.parent().unwrap().display();
        let path = format!("{folder}:{}", env::var("PATH").unwrap_or_default());
        let file = fleet.directory.file(&format!("flannel-{n}.env"));
        Flanneld { process: None, program: program.to_owned(), file, path }
    }

    /// Starts the process of flanneld.
    pub(crate) fn launch(&mut self, host: &Host) {
        let mut command = host.command(&self.program);
        command.args([&format!("-etcd-endpoints={ETCD}"), "-iface=eth0"]);
        command.arg(format!("-subnet-file={}", self.file.display())).env("PATH", &self.path);
        self.process = Some(Process::spawn(command, b"").expect("flanneld starts"));
    }

    /// Waits for the subnet of the started process. Where flanneld has lost a race for a subnet, it ends: it is started
    /// again.
    pub(crate) fn until_up(&mut self, host: &Host) {
        until("flanneld has a subnet", || {
            if self.process.as_mut().expect("a process").ended().is_some() {
                let mut old = self.process.take().expect("a process");
                let said = old.last_words();
                assert!(said.contains("already exists"), "flanneld: {said}");
                self.launch(host);
            }
            self.subnet().is_some()
        });
    }

    /// Kills the process of flanneld.
    pub(crate) fn kill(&mut self, host: &Host) {
        let mut process = self.process.take().expect("a process");
        host.run("kill", &["-KILL", &process.id().to_string()]).unwrap();
        process.wait(PATIENCE).unwrap();
    }

    /// Removes the subnet file, from which a node restores its subnet after a restart.
    pub(crate) fn forget(&self) {
        let _ = fs::remove_file(&self.file);
    }

    /// Returns the node's subnet, such as `198.19.59.0/24`.
    pub(crate) fn subnet(&self) -> Option<String> {
        let text = fs::read_to_string(&self.file).ok()?;
        let values: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
        Some(values.get("FLANNEL_SUBNET")?.replace(".1/", ".0/"))
    }

    /// Returns the address of the node in the network.
    pub(crate) fn address(&self) -> String {
        self.subnet().expect("a subnet").split('/').next().unwrap().to_owned()
    }
}
