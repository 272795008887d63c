//! Kernel state that concerns an instance, read from `/proc` and `/sys`: UDP checksum errors, drops at the queues of
//! interfaces, and forwarding settings.
//!
//! The kernel drops datagrams of a UDP tunnel before any of its sockets sees them when their outer checksum is wrong,
//! or missing where one is required. Linux counts them for a whole network namespace only. It also drops packets for
//! which the queue of a tunnel's interface has no room. The kernel may also be set to forward what a router forwards.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use segue_control::model::{Complaint, Instance, OUTER_CSUM, TX_DROPPED};

/// The directory in which the kernel describes interfaces.
const INTERFACES: &str = "/sys/class/net";

/// The file in `/proc` with the kernel's counter of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    /// The format of `/proc/net/snmp`: a line of names, then one of values, each after `Udp:`.
    V4,
    /// The format of `/proc/net/snmp6`: a name and a value in each line.
    V6,
}

impl Table {
    fn path(self) -> &'static str {
        match self {
            Table::V4 => "/proc/net/snmp",
            Table::V6 => "/proc/net/snmp6",
        }
    }

    /// Finds the number of received datagrams dropped for their UDP checksum.
    fn find(self, text: &str) -> Option<u64> {
        let value = match self {
            Table::V4 => {
                let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp:"));
                let (names, values) = (lines.next()?, lines.next()?);
                let mut pairs = names.split_whitespace().zip(values.split_whitespace());
                pairs.find(|(name, _)| *name == "InCsumErrors")?.1
            }
            Table::V6 => {
                let mut words = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
                words.find(|(name, _)| *name == "Udp6InCsumErrors")?.1
            }
        };
        value.trim().parse().ok()
    }
}

/// Counter of datagrams of one family that the kernel dropped in this network namespace for their UDP checksum. The
/// file is opened early and stays readable in the sandbox, also for another user.
#[derive(Clone, Debug)]
pub struct ChecksumDrops {
    table: Table,
    file: Arc<File>,
    /// Value of the kernel's counter at the time from which on it counts.
    before: u64,
    /// The port that shows the count.
    port: &'static str,
}

impl ChecksumDrops {
    /// Opens the counter for the family of `outer`, an address of the tunnel; `port` is the port that shows the count.
    /// `None` where the kernel has no such counter, as in a container without that part of `/proc`.
    pub fn open(outer: IpAddr, port: &'static str) -> Option<ChecksumDrops> {
        let table = if outer.is_ipv4() { Table::V4 } else { Table::V6 };
        let file = File::open(table.path()).ok()?;
        let before = table.find(&read(&file).ok()?)?;
        Some(ChecksumDrops { table, file: Arc::new(file), before, port })
    }

    /// Counts from now on: as long as a port has no socket, a datagram without a checksum over IPv6 counts as one with
    /// a wrong checksum, whatever the socket will accept.
    pub fn restart(&mut self) {
        if let Some(now) = self.now() {
            self.before = now;
        }
    }

    fn now(&self) -> Option<u64> {
        self.table.find(&read(&self.file).ok()?)
    }

    /// Returns the count since the opening or the last restart; `None` where it can no longer be read.
    fn count(&self) -> Option<u64> {
        Some(self.now()?.saturating_sub(self.before))
    }

    /// Adds the count to the drops of the port.
    pub fn put(&self, instance: &mut Instance) {
        if let (Some(port), Some(count)) = (instance.ports.get_mut(self.port), self.count()) {
            port.drops.insert(OUTER_CSUM.to_owned(), count);
        }
    }
}

/// Counter of packets that the kernel dropped at the queue of an interface, so that the instance never read them. The
/// file is opened early and stays readable in the sandbox, also for another user.
#[derive(Clone, Debug)]
pub struct QueueDrops {
    /// The name of the interface, which is that of the port that shows the count.
    interface: String,
    file: Arc<File>,
    /// Value of the kernel's counter at the time of opening.
    before: u64,
}

impl QueueDrops {
    /// Opens the counter of an interface. `None` where `/sys` has no interface of this name and index: it may belong to
    /// another network namespace.
    pub fn open(interface: &str, index: u32) -> Option<QueueDrops> {
        let folder = Path::new(INTERFACES).join(interface);
        if value(&File::open(folder.join("ifindex")).ok()?)? != u64::from(index) {
            return None;
        }
        let file = File::open(folder.join("statistics/tx_dropped")).ok()?;
        let before = value(&file)?;
        Some(QueueDrops { interface: interface.to_owned(), file: Arc::new(file), before })
    }

    /// Returns the count since the opening; `None` where it can no longer be read.
    fn count(&self) -> Option<u64> {
        Some(value(&self.file)?.saturating_sub(self.before))
    }

    /// Adds the count to the numbers of the port.
    pub fn put(&self, instance: &mut Instance) {
        if let (Some(port), Some(count)) = (instance.ports.get_mut(&self.interface), self.count()) {
            port.numbers.insert(TX_DROPPED.to_owned(), count);
        }
    }
}

/// The kernel's forwarding settings of some interfaces. The files are opened early and stay readable in the sandbox.
#[derive(Clone, Debug, Default)]
pub struct Forwarding {
    /// The files, each with the name of its setting.
    files: Arc<Vec<(String, File)>>,
}

impl Forwarding {
    /// Opens those settings of the given interfaces that exist in `/proc`.
    pub fn open(interfaces: [&str; 2]) -> Forwarding {
        let settings = interfaces.into_iter().flat_map(|name| ["ipv4", "ipv6"].map(|family| (family, name)));
        let file = |(family, name)| {
            let file = File::open(format!("/proc/sys/net/{family}/conf/{name}/forwarding")).ok()?;
            Some((format!("net.{family}.conf.{name}.forwarding"), file))
        };
        Forwarding { files: Arc::new(settings.filter_map(file).collect()) }
    }

    /// Returns a problem where the kernel forwards packets of these interfaces.
    pub fn complaint(&self) -> Option<Complaint> {
        // The file of an interface that is gone cannot be read.
        let is_on = |file: &File| read(file).is_ok_and(|text| text.trim() != "0");
        let on = self.files.iter().filter_map(|(name, file)| is_on(file).then_some(name));
        let on: Vec<&String> = on.collect();
        let off: Vec<String> = on.iter().map(|name| format!("{name}=0")).collect();
        (!on.is_empty()).then(|| Complaint {
            what: "the kernel forwards too".to_owned(),
            why: Some(format!("each packet may be forwarded twice; to end that: sysctl -w {}", off.join(" "))),
            code: "kernel_forwards".to_owned(),
            fix: Some(format!("sudo sysctl -w {}", off.join(" "))),
            ..Complaint::default()
        })
    }
}

/// Reads a file of the kernel that has one number.
fn value(file: &File) -> Option<u64> {
    read(file).ok()?.trim().parse().ok()
}

/// Reads a file of the kernel from its start by pread(2): a settled process may not call lseek(2).
fn read(file: &File) -> io::Result<String> {
    let mut bytes = vec![0; 4096];
    let mut len = 0;
    loop {
        match file.read_at(&mut bytes[len..], len as u64) {
            Ok(0) => break,
            Ok(got) => len += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if len == bytes.len() {
            bytes.resize(2 * len, 0);
        }
    }
    bytes.truncate(len);
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_tables_have_the_counter() {
        for (table, text) in [
            (
                Table::V4,
                "Ip: Forwarding InCsumErrors\nIp: 1 9\nUdp: InDatagrams NoPorts InCsumErrors MemErrors\nUdp: 5 6 7 8\n\
                 UdpLite: InDatagrams NoPorts InCsumErrors MemErrors\nUdpLite: 0 0 3 0\n",
            ),
            (Table::V6, "Udp6InErrors\t4\nUdp6InCsumErrors                \t7\nUdpLite6InCsumErrors            \t3\n"),
        ] {
            assert_eq!(table.find(text), Some(7), "{table:?}");
            assert_eq!(table.find(&text.replace("InCsumErrors", "InErrors")), None, "{table:?}");
            assert_eq!(table.find(""), None);
        }
    }

    #[test]
    fn the_drops_of_an_interface_are_numbers_of_its_port_and_not_those_of_a_namesake() {
        // The index of the loopback interface is 1 in each network namespace.
        let Some(drops) = QueueDrops::open("lo", 1) else {
            return segue_lab::skip_this_test(&format!("no {INTERFACES}/lo"));
        };
        assert!(QueueDrops::open("lo", 2).is_none() && QueueDrops::open("none0", 1).is_none());
        let mut instance = Instance::default();
        drops.put(&mut instance);
        assert!(instance.ports.is_empty());
        instance.ports.entry("lo".to_owned()).or_default();
        QueueDrops { before: 0, ..drops.clone() }.put(&mut instance);
        let count = instance.ports["lo"].numbers[TX_DROPPED];
        QueueDrops { before: count + 1, ..drops }.put(&mut instance);
        assert_eq!(instance.ports["lo"].numbers[TX_DROPPED], 0, "a counter that went back is no huge number");
    }

    #[test]
    fn an_open_table_is_read_anew_each_time() {
        let Some(drops) = ChecksumDrops::open(IpAddr::from([127, 0, 0, 1]), "udp") else {
            return segue_lab::skip_this_test(&format!("no {}", Table::V4.path()));
        };
        let counts = [drops.count(), drops.clone().count()];
        assert!(counts.iter().all(Option::is_some), "{counts:?}");
    }
}
