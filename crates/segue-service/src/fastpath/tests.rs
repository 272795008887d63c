use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;

use segue::encap::Mode as Inside;
use segue_fastpath::mark_of;
use segue_host::netlink::sockets;

use super::*;

const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 1));
const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 2));
const SWITCHES: Switches = Switches { is_allowed: true, has_queues: false };

/// Returns the state of a path that is permitted.
fn permitted() -> State {
    let mut state = State::default();
    state.set(SWITCHES, Mode::Auto);
    state
}

/// Runs a test in a network namespace of its own, in a thread that ends with it.
#[track_caller]
pub(super) fn in_namespace(test: impl FnOnce() + Send) {
    let alone = || match sys::unshare(libc::CLONE_NEWNET) {
        Ok(()) => test(),
        Err(error) => segue_lab::skip_this_test(&format!("no network namespace: {error}")),
    };
    std::thread::scope(|scope| scope.spawn(alone).join()).unwrap();
}

#[test]
fn rules_that_are_added_while_the_path_is_loaded_are_seen() {
    in_namespace(|| {
        let nft = |words: &str| Command::new("nft").arg(words).status().is_ok_and(|status| status.success());
        if !nft("add table inet t") {
            return segue_lab::skip_this_test("no nft, or a kernel without nf_tables");
        }
        if let Err(why) = probe(false) {
            return segue_lab::skip_this_test(&why);
        }
        for is_added in [false, true] {
            let mut state = permitted();
            let config = Config { csum: false, ..Config::new(Inside::Ipip, Carrier::Bare, LOCAL, REMOTE) };
            let load = || {
                assert!(!is_added || nft("add chain inet t c { type filter hook output priority 0; }"));
                let path = Path::load(&[config], &[]).map_err(|error| failure(&error))?;
                Ok(Some(Programs::Tunnels(Box::new(path))))
            };
            state.load(Mode::Auto, load).unwrap();
            state.set_obstacle(None);
            let (why, is_on) = (state.reason(), state.is_on);
            assert_eq!((why.as_deref(), is_on), if is_added { (Some(NEW_RULES), false) } else { (None, true) });
        }
    });
}

#[test]
fn a_table_that_is_taken_leaves_what_else_is_in_the_way() {
    let refused = || Some((Vec::new(), io::Error::from_raw_os_error(libc::ENOMEM)));
    for (has_new_rules, seen, why) in [(true, None, NEW_RULES), (false, Some("sg0 has filters"), "sg0 has filters")] {
        let mut state = State { has_new_rules, ..permitted() };
        state.set_obstacle(seen.map(str::to_owned));
        for refusal in [refused(), None, refused(), refused(), None, None] {
            let is_refused = refusal.is_some();
            state.note_refusal(refusal);
            let reason = state.reason().unwrap();
            assert_eq!(reason.starts_with("the kernel does not take the peers: "), is_refused, "{reason}");
            assert!(is_refused || reason == why, "{reason}");
        }
    }
}

#[test]
fn a_refused_table_is_tried_again_until_the_kernel_takes_it() {
    in_namespace(|| {
        let config = Config { csum: false, ..Config::new(Inside::Ip, Carrier::Fou, LOCAL, REMOTE) };
        let listener = segue_fastpath::Listener { config, sources: vec![50_000] };
        if let Err(why) = probe(true) {
            return segue_lab::skip_this_test(&why);
        }
        let peers = |count: u8| -> Vec<Peer> {
            (0..count)
                .map(|last| Peer { prefix: ([10, 0, 0, last].into(), 32), listener: 0, config, mac: [0; 6] })
                .collect()
        };
        let mut state = permitted();
        state.path = Some(Programs::Table(Box::new(PeerPath::load(&[listener], [2, 0, 0, 0, 0, 9], 4).unwrap())));
        state.set_peers(peers(5));
        assert!(state.refused.is_some() && !state.is_on, "there is no room for five");
        // Had there been no memory, another attempt would succeed.
        state.note_refusal(Some((peers(4), io::Error::from_raw_os_error(libc::ENOMEM))));
        let request = Request {
            mode: Mode::On,
            tunnels: Vec::new(),
            table: None,
            outside: "udp",
            sources: Vec::new(),
            is_successor: false,
            prevented: None,
        };
        let path = Fastpath(Arc::new(Inner { request, state: Mutex::new(state) }));
        let (mut netlink, mut schedule) = (Netlink::open().unwrap(), LookupSchedule::new(None));
        path.check(&mut netlink, &mut schedule, CHECK_EVERY, &Heartbeat::new(1).unwrap());
        let state = path.state();
        assert!(state.refused.is_none() && state.is_on, "{:?}", state.reason());
        let Some(Programs::Table(table)) = &state.path else { unreachable!() };
        assert_eq!(table.served().kernel, 4);
        assert!(peers(4).iter().all(|peer| table.peer_counts(peer.prefix).unwrap().is_some()));
    });
}

#[test]
fn a_mark_counts_as_long_as_its_socket_is_open_and_only_that_of_root_or_the_same_user() {
    in_namespace(|| {
        let is_marked = |number| sockets::has_abstract(&mark_of(number)).unwrap();
        let bind = || UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(mark_of(57)).unwrap()).unwrap();
        let socket = bind();
        if !is_marked(57) {
            return segue_lab::skip_this_test("this kernel does not list local sockets (unix_diag)");
        }
        assert!(!is_marked(5) && !is_marked(570));
        drop(socket);
        assert!(!is_marked(57));
        let socket = bind();
        if sys::euid() != 0 || std::os::unix::fs::fchown(&socket, Some(60_000), None).is_err() {
            return segue_lab::skip_this_test("only root has sockets of other users");
        }
        assert!(!is_marked(57));
    });
}
