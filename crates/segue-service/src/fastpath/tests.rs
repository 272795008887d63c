use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::fchown;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::time::Instant;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use segue::encap::Mode as Inside;
use segue_fastpath::{MARK, Peer, PeerPath, Route, foreign_programs, is_left_over, mark_of};
use segue_host::capability::Capability;
use segue_host::netlink::sockets;

use super::filters::tidy_by;
use super::state::NEW_RULES;
use super::*;

const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 1));
const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 2));
const SWITCHES: Switches = Switches { is_allowed: true, has_queues: false };

/// Returns the configuration of a tunnel that the in-kernel path carries in both directions.
fn ipip() -> Config {
    Config { csum: false, ..Config::new(Inside::Ipip, Carrier::Bare, LOCAL, REMOTE) }
}

/// Returns a request without tunnels.
fn request(mode: Mode) -> Request {
    Request { mode, tunnels: Vec::new(), table: None, outside: "raw", sources: Vec::new(), prevented: None }
}

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
            let load = || {
                assert!(!is_added || nft("add chain inet t c { type filter hook output priority 0; }"));
                let path = Path::load(&[ipip()], &[]).map_err(|error| failure(&error))?;
                Ok(Some(Programs::Tunnels(Box::new(path))))
            };
            state.load(Mode::Auto, load).unwrap();
            state.set_obstacle(Ok(None));
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
        state.set_obstacle(Ok(seen.map(str::to_owned)));
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
        let path = Fastpath(Arc::new(Inner { request: request(Mode::On), state: Mutex::new(state) }));
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
        let named = |name: &str| UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let _others = ["segue-program-58-00ff", "segue-program-5x", "segue-programs-59"].map(named);
        assert_eq!(sockets::numbers(MARK).unwrap(), BTreeSet::from([57, 58]));
        if sys::euid() != 0 || fchown(&socket, Some(60_000), None).is_err() {
            return segue_lab::skip_this_test("only root has sockets of other users");
        }
        assert!(!is_marked(57) && sockets::numbers(MARK).unwrap().contains(&57));
    });
}

/// Runs `ip` in this network namespace.
fn ip(words: &str) {
    assert!(Command::new("ip").args(words.split(' ')).status().is_ok_and(|status| status.success()), "{words}");
}

/// Returns a connection, the index of `sg0` towards a remote, and that of `sg1`, which stands for a tunnel's interface;
/// without CAP_SYS_ADMIN, so that the names of programs cannot be read.
fn links() -> (Netlink, [u32; 2]) {
    ip("link add sg0 type veth peer name sg1");
    let mut netlink = Netlink::open().unwrap();
    let indexes = ["sg0", "sg1"].map(|name| index_of(name, &mut netlink).unwrap());
    sys::keep_capabilities(!(1 << Capability::SysAdmin as u64)).unwrap();
    (netlink, indexes)
}

/// Loads a path and attaches it to these interfaces; `None` where this machine cannot.
fn attached(netlink: &mut Netlink, [outside, inside]: [u32; 2]) -> Option<Path> {
    if let Err(why) = probe(false) {
        segue_lab::skip_this_test(&why);
        return None;
    }
    let mut path = Path::load(&[ipip()], &[]).unwrap();
    match path.attach(0, inside, Route { link: outside, mtu: 1500 }, &mut Added(netlink)) {
        Err(segue_fastpath::Error::Refused(step, error)) if error.raw_os_error() == Some(libc::ENOENT) => {
            segue_lab::skip_this_test(&format!("{step}: no clsact or no filters with programs (cls_bpf)"));
            return None;
        }
        attached => attached.unwrap(),
    }
    Some(path)
}

/// Has system calls of this thread end with this error.
fn refuse(rules: BTreeMap<i64, Vec<SeccompRule>>, error: i32) {
    let refuse = SeccompAction::Errno(error as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// Makes the kernel one without tcx links for this thread, on which filters with programs are added.
fn without_tcx() {
    const LINK_CREATE: u64 = 28;
    let is_it = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, LINK_CREATE).unwrap();
    refuse([(libc::SYS_bpf, vec![SeccompRule::new(vec![is_it]).unwrap()])].into(), libc::EINVAL);
}

/// Returns a state with the path of one tunnel, switched on.
fn with_path() -> State {
    let mut state = permitted();
    state.path = Some(Programs::Tunnels(Box::new(Path::load(&[ipip()], &[]).unwrap())));
    state.settle();
    state
}

/// Tests that the path counts as in use while the kernel does not switch it off, and that this is tried again. A filter
/// of system calls stands for such a kernel.
#[test]
fn a_path_that_cannot_be_switched_off_is_still_on_and_is_tried_again() {
    in_namespace(|| {
        if let Err(why) = probe(false) {
            return segue_lab::skip_this_test(&why);
        }
        let mut state = with_path();
        assert!(state.is_on);
        refuse([(libc::SYS_bpf, Vec::new())].into(), libc::EPERM);
        for _ in 0..2 {
            state.set(Switches { is_allowed: false, ..SWITCHES }, Mode::Auto);
            state.settle();
            let reason = state.reason().unwrap_or_default();
            assert!(state.is_on && reason.contains("does not switch it"), "{reason}");
        }
        // Nothing is to be done any more.
        state.set(SWITCHES, Mode::Auto);
        state.settle();
        assert_eq!((state.is_on, state.reason()), (true, None));
    });
}

#[test]
fn a_look_for_obstacles_that_fails_leaves_what_was_in_the_way_before() {
    in_namespace(|| {
        if let Err(why) = probe(false) {
            return segue_lab::skip_this_test(&why);
        }
        let mut state = permitted();
        state.path = Some(Programs::Tunnels(Box::new(Path::load(&[ipip()], &[]).unwrap())));
        let failed = || Err(io::Error::from_raw_os_error(libc::ENOMEM));
        let filters = || Ok(Some("sg0 has filters (clsact)".to_owned()));
        for (seen, is_on) in
            [(Ok(None), true), (failed(), true), (filters(), false), (failed(), false), (Ok(None), true)]
        {
            state.set_obstacle(seen);
            assert_eq!((state.is_on, state.reason().is_none()), (is_on, is_on), "{:?}", state.reason());
        }
    });
}

#[test]
fn programs_that_cannot_be_looked_for_at_the_start_are_in_the_way() {
    in_namespace(|| {
        const NONE: u32 = 9999;
        if foreign_programs(NONE, &|_| false).is_ok() {
            return segue_lab::skip_this_test("this kernel has no links of programs (tcx)");
        }
        let interfaces = Interfaces { outside: [NONE].into(), ..Interfaces::default() };
        let why = check_host(&request(Mode::Auto), &interfaces, &mut Netlink::open().unwrap()).unwrap_err();
        assert!(why.starts_with("looking for programs at an interface: "), "{why}");
    });
}

#[test]
fn an_instance_is_recognised_where_another_user_has_taken_the_names_of_its_marks() {
    in_namespace(|| {
        let (mut netlink, links) = links();
        let [outside, _] = links;
        let Some(path) = attached(&mut netlink, links) else { return };
        if obstacle::of_programs(&[outside].into(), &mut netlink).is_some() {
            return segue_lab::skip_this_test("this kernel does not list local sockets (unix_diag)");
        }
        let numbers = foreign_programs(outside, &|_| false).unwrap();
        drop(path);
        let Some(last) = numbers.iter().map(|number| number.parse::<u32>().unwrap()).max() else {
            return segue_lab::skip_this_test("this kernel has no links of programs (tcx)");
        };
        // Programs are numbered in turn.
        let taken: Vec<UnixDatagram> = (last + 1..last + 200)
            .filter_map(|number| UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(mark_of(number)).ok()?).ok())
            .collect();
        if sys::euid() != 0 || taken.iter().any(|socket| fchown(socket, Some(60_000), None).is_err()) {
            return segue_lab::skip_this_test("only root has sockets of other users");
        }
        let _path = attached(&mut netlink, links);
        assert_eq!(obstacle::of_programs(&[outside].into(), &mut netlink), None);
    });
}

#[test]
fn the_programs_of_an_instance_that_ends_during_the_look_are_none_of_others() {
    in_namespace(|| {
        let (mut netlink, links) = links();
        let [outside, _] = links;
        let Some(path) = attached(&mut netlink, links) else { return };
        let path = Cell::new(Some(path));
        let is_marked = |_| {
            path.take();
            // A process that another test starts has the descriptors too, for a moment.
            let begin = Instant::now();
            while !foreign_programs(outside, &|_| false).unwrap().is_empty() {
                assert!(begin.elapsed() < Duration::from_secs(60));
            }
            false
        };
        assert_eq!(foreign_programs(outside, &is_marked).unwrap(), Vec::<String>::new());
    });
}

#[test]
fn filters_where_packets_are_received_are_in_the_way_after_the_route_has_moved() {
    in_namespace(|| {
        ip("tuntap add dev sg1 mode tun");
        for link in ["sg2", "sg3"] {
            ip(&format!("link add {link} up type veth peer name {link}-peer"));
        }
        ip(&format!("addr add {LOCAL}/24 dev sg2"));
        let mut netlink = Netlink::open().unwrap();
        let [inside, first, second] = ["sg1", "sg2", "sg3"].map(|name| index_of(name, &mut netlink).unwrap());
        let Some(path) = attached(&mut netlink, [first, inside]) else { return };
        let mut state = permitted();
        state.path = Some(Programs::Tunnels(Box::new(path)));
        let tunnels = vec![Tunnel { dev: "sg1".to_owned(), config: ipip() }];
        let request = Request { tunnels, ..request(Mode::Auto) };
        let path = Fastpath(Arc::new(Inner { request, state: Mutex::new(state) }));
        let (mut schedule, heartbeat) = (LookupSchedule::new(None), Heartbeat::new(1).unwrap());
        let mut why = || {
            path.check(&mut netlink, &mut schedule, CHECK_EVERY, &heartbeat);
            path.state().reason()
        };
        assert_eq!(why(), None);
        ip(&format!("route replace {REMOTE} dev sg3 src {LOCAL}"));
        assert_eq!(why(), None);
        assert!(path.interfaces().outside.contains(&second));
        let added = Command::new("tc").args(["qdisc", "add", "dev", "sg2", "clsact"]).status();
        if !added.is_ok_and(|status| status.success()) {
            return segue_lab::skip_this_test("no tc, no clsact, or one of the path itself (before Linux 6.6)");
        }
        assert_eq!(why().as_deref(), Some("sg2 has filters (clsact)"));
    });
}

#[test]
fn routing_rules_by_what_the_path_does_not_ask_for_are_in_the_way_as_long_as_they_are_there() {
    in_namespace(|| {
        if let Err(why) = probe(false) {
            return segue_lab::skip_this_test(&why);
        }
        let state = with_path();
        let tunnels = vec![Tunnel { dev: "sg1".to_owned(), config: ipip() }];
        let request = Request { tunnels, ..request(Mode::Auto) };
        let path = Fastpath(Arc::new(Inner { request, state: Mutex::new(state) }));
        let (mut netlink, mut schedule) = (Netlink::open().unwrap(), LookupSchedule::new(None));
        let heartbeat = Heartbeat::new(1).unwrap();
        let mut is_on = |rule: &str| {
            path.check(&mut netlink, &mut schedule, CHECK_EVERY, &heartbeat);
            let state = path.state();
            let why = state.reason().unwrap_or_default();
            assert_eq!(state.is_on, !why.starts_with("a routing rule tells packets"), "{rule}: {why}");
            state.is_on
        };
        assert!(is_on("none"));
        for (rule, expected) in [
            ("rule add fwmark 7 lookup 100", true),
            ("-6 rule add ipproto 47 lookup 100", true),
            ("rule add ipproto 47 lookup 100", false),
            ("rule add sport 6080 lookup 100", false),
            ("rule add ipproto 17 dport 6080-6090 lookup 100", false),
            ("rule add uidrange 1-2 lookup 100", false),
            ("rule add oif lo lookup 100", false),
        ] {
            ip(rule);
            assert_eq!(is_on(rule), expected, "{rule}");
            ip(&rule.replace(" add ", " del "));
            assert!(is_on("none any more"), "{rule}");
        }
    });
}

/// Returns the numbers of the programs in the filters of an interface.
fn numbers(interface: u32, netlink: &mut Netlink) -> Vec<u32> {
    netlink.filters(interface).unwrap().iter().map(|filter| filter.program).collect()
}

#[test]
fn filters_of_ended_processes_are_removed_but_the_last_and_with_it_the_discipline() {
    in_namespace(|| {
        ip("link add sg0 type veth peer name sg1");
        let mut netlink = Netlink::open().unwrap();
        let links = ["sg0", "sg1"].map(|name| index_of(name, &mut netlink).unwrap());
        let [outside, _] = links;
        without_tcx();
        let Some(path) = attached(&mut netlink, links) else { return };
        let first = numbers(outside, &mut netlink);
        assert_eq!(first.len(), 1);
        drop(path);
        // The kernel empties the map a little later.
        let begin = Instant::now();
        loop {
            match is_left_over(first[0]) {
                Ok(true) => break,
                Ok(false) => assert!(begin.elapsed() < Duration::from_secs(60)),
                Err(error) => return segue_lab::skip_this_test(&format!("programs cannot be looked at: {error}")),
            }
        }
        tidy(&[outside].into(), &mut netlink);
        assert_eq!(numbers(outside, &mut netlink), first, "other software could have come to use the discipline");
        let _path = attached(&mut netlink, links);
        tidy(&[outside].into(), &mut netlink);
        let second = numbers(outside, &mut netlink);
        assert!(second.len() == 1 && second != first, "{first:?}, then {second:?}");
    });
}

#[test]
fn filters_of_ended_processes_are_told_by_their_marks_where_programs_cannot_be_looked_at() {
    in_namespace(|| {
        let (mut netlink, links) = links();
        let [outside, inside] = links;
        without_tcx();
        let mut add = || attached(&mut netlink, links);
        let Some(other) = add() else { return };
        for _ in 0..3 {
            drop(add());
        }
        let own = add();
        let before = numbers(outside, &mut netlink);
        assert_eq!(before.len(), 5);
        if sockets::numbers(MARK).unwrap().is_empty() {
            return segue_lab::skip_this_test("this kernel does not list local sockets (unix_diag)");
        }
        // A process that another test starts has the sockets too, for a moment.
        let begin = Instant::now();
        while numbers(outside, &mut netlink).len() > 2 || numbers(inside, &mut netlink).len() > 2 {
            tidy(&[outside, inside].into(), &mut netlink);
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", numbers(outside, &mut netlink));
        }
        let after = numbers(outside, &mut netlink);
        let marks = sockets::numbers(MARK).unwrap();
        assert_eq!(after.iter().filter(|number| marks.contains(*number)).count(), 2, "{before:?}, then {after:?}");
        drop((other, own));
    });
}

/// Tests that a handover lists the local sockets once for all interfaces: each tunnel has an interface, and marks.
#[test]
fn marks_are_listed_once_for_the_filters_of_all_interfaces() {
    in_namespace(|| {
        let (mut netlink, links) = links();
        without_tcx();
        let Some(_predecessor) = attached(&mut netlink, links) else { return };
        let lists = |netlink: &mut Netlink| {
            let mut lists = 0;
            tidy_by(&links.into(), netlink, || {
                lists += 1;
                Ok(BTreeSet::new())
            });
            lists
        };
        assert_eq!(lists(&mut netlink), 0, "a single filter stays anyway");
        let _successor = attached(&mut netlink, links);
        assert_eq!(lists(&mut netlink), 1);
        for interface in links {
            assert_eq!(numbers(interface, &mut netlink).len(), 2, "without a list all of them stay");
        }
    });
}

/// Loads a path of many tunnels and attaches it; returns a connection and the indexes of the tunnels' interfaces too,
/// without CAP_SYS_ADMIN as [`links`]. `None` where this machine cannot.
fn many() -> Option<(Netlink, Path, Vec<u32>)> {
    const COUNT: u8 = 32;
    (0..COUNT).for_each(|at| ip(&format!("link add more{at} type veth peer name peer{at}")));
    let (mut netlink, [outside, _]) = links();
    if let Err(why) = probe(false) {
        segue_lab::skip_this_test(&why);
        return None;
    }
    let config = |at| Config { remote: [198, 18, 1, at].into(), ..ipip() };
    let mut path = Path::load(&(0..COUNT).map(config).collect::<Vec<_>>(), &[]).unwrap();
    let mut insides = Vec::new();
    for at in 0..COUNT {
        let inside = index_of(&format!("more{at}"), &mut netlink).unwrap();
        path.attach(at.into(), inside, Route { link: outside, mtu: 1500 }, &mut Added(&mut netlink)).unwrap();
        insides.push(inside);
    }
    Some((netlink, path, insides))
}

#[test]
fn the_marks_of_an_instance_that_ends_go_after_its_programs() {
    in_namespace(|| {
        let Some((mut netlink, path, insides)) = many() else { return };
        let last: BTreeSet<u32> = insides.last().copied().into_iter().collect();
        if obstacle::of_programs(&last, &mut netlink).is_some() {
            return segue_lab::skip_this_test("this kernel does not list local sockets (unix_diag)");
        }
        std::thread::scope(|scope| {
            let end = scope.spawn(|| drop(path));
            while !end.is_finished() {
                assert_eq!(obstacle::of_programs(&last, &mut netlink), None);
            }
        });
    });
}

#[test]
fn the_mark_of_a_program_at_many_interfaces_is_looked_for_once() {
    in_namespace(|| {
        let Some((mut netlink, _path, insides)) = many() else { return };
        let asked = Cell::new(0);
        let is_marked = |_| {
            asked.set(asked.get() + 1);
            true
        };
        assert_eq!(obstacle::of_unmarked(&insides.into_iter().collect(), &mut netlink, &is_marked), None);
        // A kernel without links of programs (tcx) has filters there instead.
        assert!(asked.get() < 2, "{}", asked.get());
    });
}

#[test]
fn the_link_address_of_an_interface_is_found_after_its_name_has_changed() {
    in_namespace(|| {
        ["sg1", "sg2"].iter().for_each(|name| ip(&format!("tuntap add dev {name} mode tap")));
        ip("link set sg1 address 02:00:00:00:00:09");
        let mut netlink = Netlink::open().unwrap();
        let interface = index_of("sg1", &mut netlink).unwrap();
        let config = Config::new(Inside::Ethernet, Carrier::Fou, LOCAL, REMOTE);
        let mut own = |config: &Config| tunnel::station(&mut netlink, interface, config).map(|station| station.own);
        let mac = [2, 0, 0, 0, 0, 9];
        assert_eq!(own(&config).unwrap(), Some(mac));
        // Another interface has the name.
        ip("link set sg1 name sg3");
        ip("link set sg2 name sg1");
        assert_eq!(own(&config).unwrap(), Some(mac));
        assert_eq!(own(&ipip()).unwrap(), None, "no frames are inside");
        ip("link del sg3");
        assert!(own(&config).is_err(), "which is told from an interface without an address");
        assert!(own(&ipip()).is_err(), "also where no address is needed");
        ip(&format!("link add sg3 index {interface} type veth peer name sg4"));
        assert_eq!(own(&config).unwrap_err().raw_os_error(), Some(libc::ENODEV), "another interface has the index");
    });
}

/// Asserts that a path that is on is off without the interface `sg1` of its tunnel, and on again where it is back.
#[track_caller]
fn assert_off_without_interface(path: Programs, request: Request, interface: u32, mut netlink: Netlink) {
    let mut state = State { path: Some(path), ..permitted() };
    let config = Config { csum: false, ..Config::new(Inside::Ip, Carrier::Fou, LOCAL, REMOTE) };
    state.set_peers(vec![Peer { prefix: ([10, 0, 0, 1].into(), 32), listener: 0, config, mac: [0; 6] }]);
    state.settle();
    let path = Fastpath(Arc::new(Inner { request, state: Mutex::new(state) }));
    let (mut schedule, heartbeat) = (LookupSchedule::new(None), Heartbeat::new(1).unwrap());
    let mut seen = || {
        // The first look for other obstacles is a later one.
        path.check(&mut netlink, &mut schedule, 1, &heartbeat);
        let state = path.state();
        (state.is_on, state.reason())
    };
    let away = Some("sg1 is not in this network namespace".to_owned());
    assert_eq!(seen(), (true, None));
    ip("link del sg1");
    assert_eq!(seen(), (false, away.clone()));
    ip(&format!("link add other index {interface} type veth peer name other1"));
    assert_eq!(seen(), (false, away.clone()), "another interface has the index");
    let mut state = path.state();
    state.note_interface::<()>("sg1", &Err(io::Error::from_raw_os_error(libc::ENOBUFS)));
    assert_eq!((state.is_on, state.reason()), (false, away), "nothing was seen");
    state.note_interface("sg1", &Ok(()));
    assert_eq!((state.is_on, state.reason()), (true, None));
}

#[test]
fn the_path_is_off_while_the_interface_of_a_tunnel_is_not_in_this_network_namespace() {
    in_namespace(|| {
        for has_table in [false, true] {
            ip("tuntap add dev sg1 mode tun");
            ip("link add sg2 type veth peer name sg3");
            let mut netlink = Netlink::open().unwrap();
            let [inside, outside] = ["sg1", "sg2"].map(|name| index_of(name, &mut netlink).unwrap());
            if let Err(why) = probe(true) {
                return segue_lab::skip_this_test(&why);
            }
            let (path, request) = if has_table {
                let config = Config { csum: false, ..Config::new(Inside::Ip, Carrier::Fou, LOCAL, REMOTE) };
                let listener = segue_fastpath::Listener { config, sources: vec![50_000] };
                let mut path = PeerPath::load(std::slice::from_ref(&listener), [2, 0, 0, 0, 0, 9], 4).unwrap();
                path.attach(inside, outside, &mut Added(&mut netlink)).unwrap();
                let listeners = vec![Listener { name: "udp", path: listener }];
                let station = [2, 0, 0, 0, 0, 9];
                let table = Some(Table { dev: "sg1".to_owned(), underlay: outside, listeners, station });
                (Programs::Table(Box::new(path)), Request { table, ..request(Mode::On) })
            } else {
                let mut path = Path::load(&[ipip()], &[]).unwrap();
                path.attach(0, inside, Route { link: outside, mtu: 1500 }, &mut Added(&mut netlink)).unwrap();
                let tunnels = vec![Tunnel { dev: "sg1".to_owned(), config: ipip() }];
                (Programs::Tunnels(Box::new(path)), Request { tunnels, ..request(Mode::On) })
            };
            assert_off_without_interface(path, request, inside, netlink);
            ["sg2", "other"].iter().for_each(|name| ip(&format!("link del {name}")));
        }
    });
}

#[test]
fn the_path_is_off_while_this_host_does_not_have_the_local_address_that_it_had() {
    in_namespace(|| {
        if let Err(why) = probe(false) {
            return segue_lab::skip_this_test(&why);
        }
        ip("link add sg2 type veth peer name sg3");
        let state = with_path();
        let tunnels = vec![Tunnel { dev: "sg1".to_owned(), config: ipip() }];
        let request = Request { tunnels, ..request(Mode::On) };
        let path = Fastpath(Arc::new(Inner { request, state: Mutex::new(state) }));
        let (mut netlink, mut schedule) = (Netlink::open().unwrap(), LookupSchedule::new(None));
        let heartbeat = Heartbeat::new(1).unwrap();
        let mut why = || {
            path.check(&mut netlink, &mut schedule, CHECK_EVERY, &heartbeat);
            let state = path.state();
            assert_eq!(state.is_on, state.reason().is_none());
            state.reason()
        };
        assert_eq!(why(), None, "an address that it never had is not missed");
        ip(&format!("addr add {LOCAL}/24 dev sg2"));
        assert_eq!(why(), None);
        ip(&format!("addr del {LOCAL}/24 dev sg2"));
        assert_eq!(why(), Some(format!("this host no longer has {LOCAL}")));
        path.state().note_addresses(&[LOCAL].into(), Err(io::Error::from_raw_os_error(libc::ENOBUFS)));
        assert_eq!(path.state().missed, Some(LOCAL), "nothing was seen");
        ip(&format!("addr add {LOCAL}/32 dev lo"));
        assert_eq!(why(), None, "another link has it");
    });
}
