//! The claim of a gateway to its two interfaces: a second gateway between them would forward every frame again.
//!
//! The claim is a local socket whose name is derived from both interfaces. Any user may bind such a name, or keep the
//! socket of another user busy. So a claim counts only where its owner, as the kernel lists it, is able to run a
//! gateway between these interfaces. Where another user has the name, the claim gets a name beside it that cannot be
//! predicted, and later gateways check those names as well. Where the kernel does not list the owners of sockets, the
//! sockets are connected to, which tells less.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::thread;
use std::time::Duration;

use segue_control::error::{Error, Kind};
use segue_host::netlink::sockets;
use segue_host::{peer, sys};

/// Largest number of repeated connections to sockets with a full queue, over all of them.
const QUESTIONS: u32 = 20;
/// Pause before each repeated connection, since a gateway accepts connections at a limited rate
/// ([`crate::control_server`]).
const PAUSE: Duration = Duration::from_millis(20);
/// The directory in which the kernel describes interfaces.
const INTERFACES: &str = "/sys/class/net";

/// Claims two interfaces, by name and index, in either order; the claim ends with the socket. The name belongs to the
/// network namespace, as the indexes do.
pub(super) fn claim(ends: [NamedInterface<'_>; 2]) -> Result<UnixListener, Error> {
    let both = format!("{} and {}", ends[0].0, ends[1].0);
    take(ends).map_err(|refused| match refused {
        Refused::Gateway => Error::new(
            Kind::InUse,
            format!("another gateway already uses {both}"),
            "segue stat                                      lists what runs",
        )
        .why("each of two would pass on every frame, and all would arrive twice"),
        Refused::Busy(name) => Error::new(
            Kind::InUse,
            format!("cannot find out whether another gateway already uses {both}"),
            "ss -xlp | grep segue-gateway                    shows whose sockets these are",
        )
        .why(format!("the local socket @{name} has a full queue, and one of the interfaces may be in use")),
        Refused::Socket(error) => Error::system(format!("cannot claim {both}"), &error, "segue doctor")
            .why("a local socket could not be bound"),
    })
}

/// The reason for which a claim failed.
#[derive(Debug)]
enum Refused {
    /// A gateway has the claim.
    Gateway,
    /// A socket accepted no connection, and may belong to a gateway.
    Busy(String),
    Socket(io::Error),
}

/// An interface: its name and index.
type NamedInterface<'a> = (&'a str, u32);

/// Takes the claim on the interfaces. Of two gateways that start at the same time at least one finds the other: each
/// listens before it looks.
fn take(ends: [NamedInterface<'_>; 2]) -> Result<UnixListener, Refused> {
    let name = name(ends.map(|(_, index)| index));
    let mut own = name.clone();
    let socket = match bind(&own) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            own = format!("{name}-{:016x}", RandomState::new().build_hasher().finish());
            bind(&own)
        }
        bound => bound,
    };
    let socket = socket.map_err(Refused::Socket)?;
    match sockets::listeners(&name, &own).unwrap_or(None) {
        Some(users) => {
            let text = packet_sockets();
            if users.into_iter().any(|uid| is_able(uid, &text, ends)) { Err(Refused::Gateway) } else { Ok(socket) }
        }
        None => query_holders(name, &own, ends).map(|()| socket),
    }
}

/// Checks by connections that no gateway has the socket `name` or one beside it, where the kernel lists no owners.
fn query_holders(name: String, own: &str, ends: [NamedInterface<'_>; 2]) -> Result<(), Refused> {
    let mut patience = QUESTIONS;
    // Names are any bytes. Without /proc only the name itself is checked.
    let text = fs::read("/proc/thread-self/net/unix").unwrap_or_default();
    let mut others = claims(&String::from_utf8_lossy(&text), &name);
    others.insert(name);
    others.remove(own);
    others.iter().try_for_each(|other| is_free(other, ends, &mut patience))
}

fn name([one, other]: [u32; 2]) -> String {
    format!("segue-gateway-{}-{}", one.min(other), one.max(other))
}

/// Returns the socket names in `/proc/net/unix` that are `name` or begin with it.
fn claims(text: &str, name: &str) -> BTreeSet<String> {
    let paths = text.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let is_claim = |path: &&str| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    paths.filter(is_claim).map(str::to_owned).collect()
}

fn bind(name: &str) -> io::Result<UnixListener> {
    let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The process that holds a socket name, if it can be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    User(u32),
    /// The socket has closed in the meantime, or is not a listening socket like a gateway's.
    Free,
    /// The queue of the socket is full, or this process cannot open another socket.
    Unknown,
}

fn holder(name: &str, patience: &mut u32) -> Holder {
    loop {
        match sys::connect_abstract(name.as_bytes()) {
            Ok(stream) => return peer::uid(&stream).map_or(Holder::Unknown, Holder::User),
            Err(error) if error.kind() == ErrorKind::WouldBlock && *patience > 0 => {
                *patience -= 1;
                thread::sleep(PAUSE);
            }
            // ECONNREFUSED: no socket, or none that listens. EPROTOTYPE is that of a name of another type of sockets.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Holder::Free,
            Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => return Holder::Free,
            Err(_) => return Holder::Unknown,
        }
    }
}

/// Checks that no gateway has the socket `name`. A full queue proves nothing, since any user can fill that of a
/// gateway: then the pair is free only where neither interface is in use.
fn is_free(name: &str, ends: [NamedInterface<'_>; 2], patience: &mut u32) -> Result<(), Refused> {
    match holder(name, patience) {
        Holder::User(uid) if is_able(uid, &packet_sockets(), ends) => Err(Refused::Gateway),
        Holder::User(_) | Holder::Free => Ok(()),
        Holder::Unknown => {
            let is_used = has_socket(&packet_sockets(), None, ends.map(|(_, index)| index))
                || ends.iter().any(|end| tap_owner(Path::new(INTERFACES), *end).is_some());
            if is_used { Err(Refused::Busy(name.to_owned())) } else { Ok(()) }
        }
    }
}

/// Returns whether processes of a user may run a gateway between the interfaces: root's and this user's, those that
/// have a packet socket on one of them, by the kernel's list `text`, and those of the owner of a TAP, since a gateway
/// between two TAPs has no packet socket.
fn is_able(uid: u32, text: &str, ends: [NamedInterface<'_>; 2]) -> bool {
    uid == 0
        || uid == sys::euid()
        || has_socket(text, Some(uid), ends.map(|(_, index)| index))
        || ends.iter().any(|end| tap_owner(Path::new(INTERFACES), *end) == Some(uid.into()))
}

/// Returns the kernel's list of packet sockets.
fn packet_sockets() -> String {
    fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default()
}

/// Returns whether the user, or any user for `None`, has a packet socket on one of the interfaces, by
/// `/proc/net/packet` (packet(7)). Such a socket requires CAP_NET_RAW.
fn has_socket(text: &str, uid: Option<u32>, indexes: [u32; 2]) -> bool {
    const INTERFACE: usize = 4;
    const USER: usize = 7;
    text.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u32>().ok();
        number(USER).is_some_and(|user| uid.is_none_or(|uid| uid == user))
            && number(INTERFACE).is_some_and(|index| indexes.contains(&index))
    })
}

/// Returns the user that may attach to a TAP without further rights, or -1 where it has no owner. `None` for another
/// interface, and where the directory belongs to another network namespace.
fn tap_owner(folder: &Path, (name, index): NamedInterface<'_>) -> Option<i64> {
    let number = |file: &str| fs::read_to_string(folder.join(name).join(file)).ok()?.trim().parse::<i64>().ok();
    let owner = number("owner")?;
    (number("ifindex") == Some(index.into())).then_some(owner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Returns the names and the indexes of interfaces that do not exist.
    fn unused(test: u32) -> [NamedInterface<'static>; 3] {
        let first = 0x7000_0000 + (std::process::id() & 0xf_ffff) * 64 + test * 8;
        [("none0", first), ("none1", first + 1), ("none2", first + 2)]
    }

    fn is_gateway(taken: Result<UnixListener, Refused>) -> bool {
        matches!(taken, Err(Refused::Gateway))
    }

    #[test]
    fn a_pair_is_claimed_once_in_either_order_and_free_again_afterwards() {
        let [a, b, c] = unused(0);
        let first = take([a, b]).unwrap();
        assert!(is_gateway(take([a, b])) && is_gateway(take([b, a])));
        take([a, c]).unwrap();
        drop(first);
        take([b, a]).unwrap();
    }

    /// Tests that a name held by a stream socket without a listener refuses no gateway; other types of sockets have
    /// separate names.
    #[test]
    fn a_name_without_a_listener_refuses_no_gateway_and_leaves_the_pair_claimed() {
        let [a, b, _] = unused(1);
        let name = name([a.1, b.1]);
        let silent = sys::bind_abstract(name.as_bytes()).unwrap();
        assert_eq!(bind(&name).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(holder(&name, &mut QUESTIONS.clone()), Holder::Free);
        let first = take([a, b]).unwrap();
        assert!(is_gateway(take([a, b])), "beside the name");
        drop(silent);
        assert!(is_gateway(take([b, a])), "with the name, which is free now");
        drop(first);
        take([a, b]).unwrap();
    }

    #[test]
    fn without_the_kernels_list_of_owners_sockets_are_asked() {
        let [a, b, c] = unused(3);
        let [name, other] = [b, c].map(|end| name([a.1, end.1]));
        let query = |name: &str, own: &str| query_holders(name.to_owned(), own, [a, b]);
        assert!(query(&name, &name).is_ok());
        let _first = bind(&format!("{name}-00ff")).unwrap();
        assert!(matches!(query(&name, &name), Err(Refused::Gateway)));
        assert!(query(&name, &format!("{name}-00ff")).is_ok(), "it is this one's own");
        let _second = bind(&other).unwrap();
        assert!(query(&other, &other).is_ok());
        assert!(matches!(query(&other, "another"), Err(Refused::Gateway)));
    }

    #[test]
    fn a_full_queue_hides_no_gateway_and_without_the_kernels_list_only_one_between_unused_interfaces() {
        let [a, b, _] = unused(2);
        let name = name([a.1, b.1]);
        let full = bind(&name).unwrap();
        // This process has all sockets of the queue.
        let queue: u64 = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
        sys::raise_open_file_limit(queue + 1024).unwrap();
        let mut visitors: Vec<UnixStream> = Vec::new();
        let error = loop {
            match sys::connect_abstract(name.as_bytes()) {
                Ok(visitor) => visitors.push(visitor),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}, with {} sockets in the queue", visitors.len());
        assert_eq!(holder(&name, &mut 1), Holder::Unknown);
        // No process can have a packet socket on these.
        assert!(is_free(&name, [a, b], &mut 0).is_ok());
        assert!(is_gateway(take([b, a])), "the kernel lists whose it is");
        while full.accept().is_ok() {}
        assert_eq!(holder(&name, &mut 1), Holder::User(sys::euid()));
    }

    #[test]
    fn only_a_user_able_to_run_a_gateway_blocks_another_one() {
        let text = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
                    ffff8b3a4c5d6000 3      3    0003   7     1 0      1000   41\n\
                    ffff8b3a4c5d7000 3      3    88cc   0     1 0      65534  42\n";
        let has = |uid, indexes| has_socket(text, Some(uid), indexes);
        assert!(has(1000, [7, 8]) && has(1000, [3, 7]));
        assert!(!has(1000, [8, 9]) && !has(65_534, [7, 8]) && !has(3, [7, 8]));
        assert!(has_socket(text, None, [7, 8]) && !has_socket(text, None, [8, 9]));
    }

    #[test]
    fn the_owner_of_a_tap_is_that_of_the_tap_and_not_of_a_namesake() {
        let folder = std::env::temp_dir().join(format!("segue-claim-{}", std::process::id()));
        for (name, index, owner) in [("q0", "7\n", Some("1000\n")), ("q1", "8\n", Some("-1\n")), ("v0", "9\n", None)] {
            fs::create_dir_all(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("ifindex"), index).unwrap();
            if let Some(owner) = owner {
                fs::write(folder.join(name).join("owner"), owner).unwrap();
            }
        }
        let owners = [("q0", 7), ("q1", 8), ("v0", 9), ("q0", 8), ("q2", 7)].map(|end| tap_owner(&folder, end));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(owners, [Some(1000), Some(-1), None, None, None]);
    }

    #[test]
    fn claims_are_known_by_the_name_or_what_is_beside_it() {
        let line = |path: &str| format!("0000000000000000: 00000002 00000000 00010000 0001 01 4711 {path}\n");
        let paths =
            ["@segue-gateway-2-3", "@segue-gateway-2-3-00ff", "@segue-gateway-2-31", "/run/segue-gateway-2-3", ""];
        let text: String = paths.map(line).concat();
        let found: Vec<String> = claims(&text, "segue-gateway-2-3").into_iter().collect();
        assert_eq!(found, ["segue-gateway-2-3", "segue-gateway-2-3-00ff"]);
    }
}
