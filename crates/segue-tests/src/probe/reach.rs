//! Reach of a running process: its capabilities, system calls and files, and what it has open.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;

use super::Held;
use crate::faults::field;

/// Files that no process of segue may read or write while packets are forwarded, and how each is tried.
pub const FILES: [(&str, i32); 12] = [
    ("/etc/passwd", libc::O_RDONLY),
    ("/etc/resolv.conf", libc::O_RDONLY),
    ("/proc/self/exe", libc::O_RDONLY),
    ("/proc/self/mem", libc::O_RDWR),
    ("/proc/1/environ", libc::O_RDONLY),
    ("/sys/class/net", libc::O_RDONLY | libc::O_DIRECTORY),
    ("/sys/fs/cgroup/cgroup.procs", libc::O_WRONLY),
    ("/dev/bus/usb", libc::O_RDONLY | libc::O_DIRECTORY),
    ("/dev/net/tun", libc::O_RDWR),
    ("/run/segue/x", libc::O_CREAT | libc::O_WRONLY),
    ("/tmp", libc::O_RDONLY | libc::O_DIRECTORY),
    ("/", libc::O_PATH),
];

/// Reach of a process.
#[derive(Debug)]
pub struct Reach {
    /// Effective and permitted capabilities, by the bits of linux/capability.h.
    pub capabilities: u64,
    /// Numbers of the system calls that are not refused, whatever their arguments are.
    pub calls: BTreeSet<i64>,
    /// Files of [`FILES`] that it opens.
    pub files: Vec<&'static str>,
    /// Files, devices and sockets that it has open, with the number of descriptors of each.
    pub open: BTreeMap<String, usize>,
}

impl Reach {
    /// Lists what a process that is held reaches; see [`Held::calls`] for `besides`. Files are created only where
    /// `creates` allows that attempt.
    ///
    /// # Errors
    /// Where the process has ended, or cannot be asked.
    pub fn of(held: &Held, besides: &[i64], creates: bool) -> io::Result<Reach> {
        let mut files = Vec::new();
        for (path, flags) in FILES.iter().filter(|(_, flags)| creates || flags & libc::O_CREAT == 0) {
            if held.opens(path, *flags)? {
                files.push(*path);
            }
        }
        let [effective, permitted] = capabilities(held.pid())?;
        let (calls, open) = (held.calls(besides)?, open(held.pid())?);
        Ok(Reach { capabilities: effective | permitted, calls, files, open })
    }
}

impl Display for Reach {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Reach { capabilities, calls, files, open } = self;
        let (held, count) = (capabilities.count_ones(), calls.len());
        write!(f, "{held} capabilities, {count} calls {calls:?}, opens {files:?}, has open {open:?}")
    }
}

/// Returns the effective and the permitted capabilities of a process.
///
/// # Errors
/// Where it has ended.
pub fn capabilities(pid: u32) -> io::Result<[u64; 2]> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let [effective, permitted] =
        ["CapEff", "CapPrm"].map(|name| u64::from_str_radix(field(&status, name), 16).map_err(io::Error::other));
    Ok([effective?, permitted?])
}

/// Returns what the descriptors of a process are, with the number of each.
fn open(pid: u32) -> io::Result<BTreeMap<String, usize>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let target = fs::read_link(entry?.path())?.display().to_string();
        let kind = match target.split_once(":[") {
            Some(("socket", inode)) => socket(pid, inode.trim_end_matches(']')),
            // The kernel numbers these, but for anonymous inodes, which it names.
            Some((kind, _)) if kind != "anon_inode" => kind.to_owned(),
            _ => target,
        };
        *found.entry(kind).or_default() += 1;
    }
    Ok(found)
}

/// Returns the protocol of a socket: the table of the process's network namespace with its inode (proc_pid_net(5)).
fn socket(pid: u32, inode: &str) -> String {
    const TABLES: [(&str, usize); 9] = [
        ("tcp", 9),
        ("tcp6", 9),
        ("udp", 9),
        ("udp6", 9),
        ("raw", 9),
        ("raw6", 9),
        ("netlink", 9),
        ("packet", 8),
        ("unix", 6),
    ];
    let has = |(table, column): &&(&str, usize)| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().any(|line| line.split_whitespace().nth(*column) == Some(inode))
    };
    let table = TABLES.iter().find(has).map_or("another", |(table, _)| table);
    format!("{table} socket")
}
