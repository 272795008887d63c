//! Tests of a router with neighbours that move, send false announcements, or exceed the neighbour cache.

use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{self, V4, V6};
use segue_lab::Host;
use segue_tests::routed::{Echo, Routed, address, ip};
use segue_tests::{Stat, test_name, traffic};

const PATIENCE: Duration = Duration::from_secs(60);
const NAT: &[&str] = &["--nat", "198.18.2.9"];
/// Largest number of learned neighbours of one family on one port.
const MAX_NEIGHBOURS: u32 = 8192;
/// The network 198.19.0.0, whose addresses are scanned.
const SCANNED: u32 = 0xc613_0000;

/// Script that sends one frame from eth0: `arp OPERATION TO SENDER TARGET MAC` to a link address, `na TO SOURCE TARGET
/// FLAGS MAC` or `ns` likewise to an IPv6 group.
const SAY: &str = r#"
import socket, struct, sys
kind, *words = sys.argv[1:]
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("eth0", 0))
own = link.getsockname()[4]
mac = lambda text: bytes.fromhex(text.replace(":", ""))
v4, v6 = socket.inet_aton, lambda text: socket.inet_pton(socket.AF_INET6, text)
if kind == "arp":
    operation, to, sender, target, of = words
    frame = mac(to) + own + bytes.fromhex("0806000108000604") + struct.pack("!H", int(operation))
    frame += mac(of) + v4(sender) + bytes(6) + v4(target)
else:
    to, source, target, flags, of = words
    number, option = (136, 2) if kind == "na" else (135, 1)
    body = bytes([number, 0, 0, 0, int(flags, 16), 0, 0, 0]) + v6(target) + bytes([option, 1]) + mac(of)
    pseudo = v6(source) + v6(to) + struct.pack("!II", len(body), 58)
    total = sum(struct.unpack("!%dH" % (len(pseudo + body) // 2), pseudo + body))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    body = body[:2] + struct.pack("!H", total ^ 0xffff) + body[4:]
    frame = b"\x33\x33" + v6(to)[12:] + own + struct.pack("!HIHBB", 0x86dd, 6 << 28, len(body), 58, 255)
    frame += v6(source) + v6(to) + body
link.send(frame)
"#;

const BROADCAST: &str = "ff:ff:ff:ff:ff:ff";

/// Sends the message that `words` describe from the host; see [`SAY`].
#[track_caller]
fn say(host: &Host, words: &str) {
    host.run("python3", &[&["-c", SAY], &words.split(' ').collect::<Vec<_>>()[..]].concat()).unwrap();
}

/// A client that sends to one address outside.
struct Client(UdpSocket);

impl Client {
    fn new(routed: &Routed, family: Family, to: u8, port: u16) -> Client {
        let socket = traffic::socket(routed.client(family));
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        socket.connect((address(family, 2, to), port)).unwrap();
        Client(socket)
    }

    /// Returns whether one of some datagrams is echoed within a time.
    fn reaches(&self, within: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < within {
            if self.0.send(b"there?").and_then(|_| self.0.recv(&mut [0; 9])).is_ok() {
                return true;
            }
        }
        false
    }
}

fn neighbour_count(stat: &Stat) -> u64 {
    stat.json()["workers"][0]["neighbours"].as_u64().unwrap()
}

#[test]
fn a_neighbour_with_another_link_address_is_followed_when_it_says_so() {
    let Some(routed) = Routed::new(test_name!(), &["python3", "ping"], NAT) else { return };
    let server = &routed.ground.b;
    let echoes = [V4, V6].map(|family| Echo::start(routed.server(family), 0));
    let clients = [(V4, &echoes[0]), (V6, &echoes[1])].map(|(f, echo)| Client::new(&routed, f, 2, echo.port));
    let messages: [(usize, &str); 8] = [
        (0, "say arp 1 ff:ff:ff:ff:ff:ff 198.18.2.2 198.18.2.2 MAC"),
        (0, "say arp 2 ff:ff:ff:ff:ff:ff 198.18.2.2 198.18.2.2 MAC"),
        // A broadcast request for another host.
        (0, "say arp 1 ff:ff:ff:ff:ff:ff 198.18.2.2 198.18.2.77 MAC"),
        (0, "ping 198.18.2.9"),
        (0, "ping 198.18.2.1"),
        (1, "say na ff02::1 2001:db8:2::2 2001:db8:2::2 20 MAC"),
        (1, "say ns ff02::1:ff00:1 2001:db8:2::2 2001:db8:2::1 0 MAC"),
        (1, "ping 2001:db8:2::1"),
    ];
    for (number, (family, message)) in messages.iter().enumerate() {
        let client = &clients[*family];
        assert!(client.reaches(PATIENCE), "before {message}");
        let mac = format!("02:00:00:00:01:{number:02x}");
        ip(server, &format!("link set eth0 address {mac}"));
        assert!(!client.reaches(Duration::from_millis(300)), "nobody has said so before {message}");
        match message.split_once(' ').unwrap() {
            ("say", words) => say(server, &words.replace("MAC", &mac)),
            (_, to) => {
                ip(server, "neigh flush dev eth0");
                let _ = server.command("ping").args(["-c", "1", "-W", "1", to]).output();
            }
        }
        assert!(client.reaches(Duration::from_secs(2)), "after {message}");
        // The other family has its turn.
        say(server, &format!("arp 1 {BROADCAST} 198.18.2.2 198.18.2.2 {mac}"));
        say(server, &format!("na ff02::1 2001:db8:2::2 2001:db8:2::2 20 {mac}"));
    }
    assert!(routed.stat().count("out", "numbers", "neighbours_moved") >= messages.len() as u64);
}

#[test]
fn invalid_neighbour_messages_neither_create_nor_change_entries() {
    let Some(routed) = Routed::new(test_name!(), &["python3"], NAT) else { return };
    let (client, server, router) = (&routed.ground.a, &routed.ground.b, &routed.router);
    let echoes = [V4, V6].map(|family| Echo::start(routed.server(family), 0));
    let clients = [(V4, &echoes[0]), (V6, &echoes[1])].map(|(f, echo)| Client::new(&routed, f, 2, echo.port));
    assert!(clients.iter().all(|client| client.reaches(PATIENCE)));
    let bad = "02:00:00:00:00:bb";
    for (host, words) in [
        // Neighbours that were never asked for.
        (server, format!("arp 1 {BROADCAST} 198.18.2.77 198.18.2.77 {bad}")),
        (server, format!("arp 1 {BROADCAST} 198.18.2.77 198.18.2.9 {bad}")),
        (server, format!("na ff02::1 2001:db8:2::77 2001:db8:2::77 20 {bad}")),
        (server, format!("ns ff02::1:ff00:1 2001:db8:2::77 2001:db8:2::1 0 {bad}")),
        // Behind the other port.
        (client, format!("arp 2 {BROADCAST} 198.18.2.2 198.18.2.2 {bad}")),
        (client, format!("na ff02::1 2001:db8:2::2 2001:db8:2::2 20 {bad}")),
        // The router's own addresses.
        (server, format!("arp 1 {BROADCAST} 198.18.2.9 198.18.2.9 {bad}")),
        (server, format!("na ff02::1 2001:db8:2::1 2001:db8:2::1 20 {bad}")),
        // Link addresses that are none.
        (server, format!("arp 2 {BROADCAST} 198.18.2.2 198.18.2.2 00:00:00:00:00:00")),
        (server, format!("arp 2 {BROADCAST} 198.18.2.2 198.18.2.2 {BROADCAST}")),
        (server, "na ff02::1 2001:db8:2::2 2001:db8:2::2 20 33:33:00:00:00:01".to_owned()),
        // A solicitation for another host, an advertisement to all nodes, and one that does not override.
        (server, format!("ns ff02::1:ff00:33 2001:db8:2::2 2001:db8:2::33 0 {bad}")),
        (server, format!("na ff02::1 2001:db8:2::2 2001:db8:2::2 60 {bad}")),
        (server, format!("na ff02::1 2001:db8:2::2 2001:db8:2::2 0 {bad}")),
    ] {
        say(host, &words);
        // Nothing is to come of it: the time is what the router would take to believe it.
        thread::sleep(Duration::from_millis(30));
        for client in &clients {
            assert!(client.reaches(Duration::from_secs(1)), "{words}");
        }
    }
    assert_eq!(routed.stat().count("out", "numbers", "neighbours_moved"), 0);
    // A neighbour that had been learned would be sent to without a query.
    for (family, place) in [(V4, 0), (V6, 1)] {
        clients[place].0.send_to(b"?", (address(family, 2, 77), 9)).unwrap();
    }
    let both = |stat: &Stat| stat.dropped("route_no_neighbour") == 2;
    let stat = Stat::until(router, &routed.ground.program, "gw0", PATIENCE, both);
    assert!(both(&stat), "{:?}", stat.drops());
    // What was set by hand.
    let mac = server.run("cat", &["/sys/class/net/eth0/address"]).unwrap();
    for to in ["198.18.2.2", "2001:db8:2::2"] {
        ip(router, &format!("neigh replace {to} lladdr {} dev out nud permanent", mac.trim()));
    }
    routed.add_routes(&["blackhole 198.19.77.0/24"]);
    say(server, &format!("arp 2 {BROADCAST} 198.18.2.2 198.18.2.2 {bad}"));
    say(server, &format!("na ff02::1 2001:db8:2::2 2001:db8:2::2 20 {bad}"));
    assert!(clients.iter().all(|client| client.reaches(Duration::from_secs(1))));
}

#[test]
fn neighbour_at_a_wrong_link_address_is_resolved_again() {
    let Some(routed) = Routed::new(test_name!(), &["python3"], NAT) else { return };
    let server = &routed.ground.b;
    let echoes = [V4, V6].map(|family| Echo::start(routed.server(family), 0));
    let clients = [(V4, &echoes[0]), (V6, &echoes[1])].map(|(f, echo)| Client::new(&routed, f, 2, echo.port));
    assert!(clients.iter().all(|client| client.reaches(PATIENCE)));
    let asked = routed.stat().count("out", "numbers", "neighbour_questions");
    say(server, &format!("arp 1 {BROADCAST} 198.18.2.2 198.18.2.2 02:00:00:00:00:bb"));
    say(server, "na ff02::1 2001:db8:2::2 2001:db8:2::2 20 02:00:00:00:00:bb");
    assert!(clients.iter().all(|client| !client.reaches(Duration::from_millis(300))));
    // Three questions to the wrong place, a second apart, then a broadcast.
    assert!(clients.iter().all(|client| client.reaches(PATIENCE)));
    let asked = routed.stat().count("out", "numbers", "neighbour_questions") - asked;
    assert!((8..=12).contains(&asked), "{asked} questions");
}

/// Tests that a change of a neighbour's link address in the kernel is applied together with a new route.
#[test]
fn a_neighbour_that_changes_together_with_a_route_is_followed() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    let (server, router) = (&routed.ground.b, &routed.router);
    let echo = Echo::start(routed.server(V4), 0);
    let client = Client::new(&routed, V4, 2, echo.port);
    assert!(client.reaches(PATIENCE));
    let mac = "02:00:00:00:01:77";
    ip(server, &format!("link set eth0 address {mac}"));
    ip(router, "neigh flush dev out");
    routed.add_routes(&["blackhole 198.19.77.0/24"]);
    assert!(!client.reaches(Duration::from_millis(300)), "nobody has said so");
    let both = format!(
        "printf 'neigh replace 198.18.2.2 lladdr {mac} dev out nud reachable\\nroute add 198.18.99.0/24 via 198.18.2.77\\n' | ip -batch -"
    );
    router.run("sh", &["-c", &both]).unwrap();
    assert!(client.reaches(Duration::from_secs(2)));
}

/// Tests that repeated reports of an old neighbour entry, which the kernel sends with each change of routes, do not
/// override a new link address.
#[test]
fn moved_neighbours_are_resolved_and_lost_ones_reported_during_route_changes() {
    let Some(routed) = Routed::new(test_name!(), &["python3", "ping"], NAT) else { return };
    let (server, router) = (&routed.ground.b, &routed.router);
    let echo = Echo::start(routed.server(V4), 0);
    let client = Client::new(&routed, V4, 2, echo.port);
    // The kernel knows it, too.
    router.run("ping", &["-c", "1", "-W", "2", "198.18.2.2"]).unwrap();
    assert!(client.reaches(PATIENCE));
    // It is asked now, and not there.
    say(server, &format!("arp 1 {BROADCAST} 198.18.2.2 198.18.2.2 02:00:00:00:00:bb"));
    assert!(!client.reaches(Duration::from_millis(300)));
    let begin = Instant::now();
    let mut is_found = false;
    while !is_found && begin.elapsed() < PATIENCE {
        for change in ["add", "del"] {
            ip(router, &format!("route {change} 198.18.99.0/24 via 198.18.2.77"));
            is_found |= client.reaches(Duration::from_millis(200));
        }
    }
    assert!(is_found);
    // It is gone.
    ip(server, "addr del 198.18.2.2/24 dev eth0");
    say(server, &format!("arp 1 {BROADCAST} 198.18.2.2 198.18.2.2 02:00:00:00:00:bc"));
    let before = routed.stat().dropped("route_no_neighbour");
    let begin = Instant::now();
    while routed.stat().dropped("route_no_neighbour") == before {
        assert!(begin.elapsed() < 2 * PATIENCE, "{}", routed.stat().json());
        for change in ["add", "del"] {
            ip(router, &format!("route {change} 198.18.99.0/24 via 198.18.2.77"));
            client.reaches(Duration::from_millis(200));
        }
    }
}

/// Number of hosts that scan.
const SCANNERS: u8 = 40;

#[test]
fn full_neighbour_cache_evicts_unused_entries_and_resolves_new_ones() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    let server = &routed.ground.b;
    ip(server, "route add local 198.19.0.0/16 dev lo");
    ip(server, "addr add 198.18.2.3/24 dev eth0");
    ip(&routed.router, "route add 198.19.0.0/16 dev out");
    // As many answers as there are questions.
    server.set_sysctl("ipv4/icmp_ratelimit", "0").unwrap();
    let echo = Echo::start(routed.server(V4), 0);
    let used = Client::new(&routed, V4, 2, echo.port);
    assert!(used.reaches(PATIENCE));
    // One sender alone is allowed too few solicitations to fill the cache.
    let scanners: Vec<_> = (0..SCANNERS)
        .map(|number| {
            let address = Ipv4Addr::new(198, 18, 1, 100 + number);
            ip(&routed.ground.a, &format!("addr add {address}/24 dev eth0"));
            traffic::socket(traffic::Place { host: &routed.ground.a, address: address.into() })
        })
        .collect();
    let begin = Instant::now();
    let (mut next, mut stat) = (0, routed.stat());
    while next < MAX_NEIGHBOURS + 200 || stat.count("out", "numbers", "neighbours_displaced") < 200 {
        assert!(begin.elapsed() < 6 * PATIENCE && next < 60_000, "{} {next}", stat.json());
        for host in next..next + 64 {
            // Errors about those before are of no interest.
            let scanner = &scanners[host as usize % scanners.len()];
            let _ = scanner.send_to(b"?", (Ipv4Addr::from_bits(SCANNED + host), 9));
        }
        next += 64;
        thread::sleep(Duration::from_millis(8));
        if next % 1024 == 0 || next > MAX_NEIGHBOURS {
            stat = routed.stat();
            assert!(used.reaches(Duration::from_secs(2)), "after {next}");
        }
    }
    // Those of the inside are the scanners and the client.
    let most = u64::from(MAX_NEIGHBOURS) + u64::from(SCANNERS) + 16;
    let count = neighbour_count(&stat);
    assert!(count >= u64::from(MAX_NEIGHBOURS) && count < most, "{}", stat.json());
    let new_echo = Echo::start(traffic::Place { host: server, address: address(V4, 2, 3) }, 0);
    assert!(Client::new(&routed, V4, 3, new_echo.port).reaches(Duration::from_secs(2)), "one that is new");
    assert!(used.reaches(Duration::from_secs(2)), "one that is used");
}
