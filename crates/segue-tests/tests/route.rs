//! Tests of a router with NAT for IPv4 and without for IPv6, from the hosts connected to it: everyday traffic of a
//! network, and the router's ICMP errors after failures.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{self, V4, V6};
use segue_lab::{Host, Process};
use segue_tests::capture::Directory;
use segue_tests::routed::{Echo, PORTS, Routed, address, ip};
use segue_tests::traffic::{self, Place};
use segue_tests::{Random, Stat, skip, sys, test_name};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
const NAT: &[&str] = &["--nat", "198.18.2.9"];

fn serve(host: &Host, words: &[&str], ready: &str) -> Process {
    let mut command = host.command(words[0]);
    command.args(&words[1..]);
    let mut process = Process::spawn(command, b"").unwrap();
    let begin = Instant::now();
    while !process.stdout().contains(ready) && !process.stderr().contains(ready) {
        assert!(process.ended().is_none() && begin.elapsed() < PATIENCE, "{}", process.last_words());
        thread::sleep(Duration::from_millis(10));
    }
    process
}

/// Runs a program that may fail; returns its output.
fn says(host: &Host, words: &[&str]) -> String {
    let output = host.command(words[0]).args(&words[1..]).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Starts a file server at an address, and returns the URL of a file there.
fn web(at: Place<'_>, port: &str, directory: &Path) -> Process {
    let (bind, directory) = (at.address.to_string(), directory.to_str().unwrap());
    let words = ["python3", "-u", "-m", "http.server", port, "--bind", &bind, "--directory", directory];
    serve(at.host, &words, "Serving HTTP")
}

fn fetch(host: &Host, to: SocketAddr, file: &Path) -> Vec<u8> {
    let url = format!("http://{to}/file");
    host.run("curl", &["-sS", "-g", "--fail", "--max-time", "60", "-o", file.to_str().unwrap(), &url]).unwrap();
    fs::read(file).unwrap()
}

#[test]
fn files_arrive_and_iperf3_runs_both_ways() {
    let Some(routed) = Routed::new(test_name!(), &["curl", "python3", "iperf3"], NAT) else { return };
    let directory = Directory::new();
    let bytes = Random::new(1).bytes(traffic::long() as usize);
    fs::write(directory.file("file"), &bytes).unwrap();
    for family in Family::ALL {
        let (client, server) = (routed.client(*family), routed.server(*family));
        let _web = web(server, "8000", directory.path());
        let got = fetch(client.host, (server.address, 8000).into(), &directory.file("got"));
        assert!(got == bytes, "IPv{family}: {} of {} bytes, or others", got.len(), bytes.len());
        let to = server.address.to_string();
        for options in [&["-t", "1"][..], &["-t", "1", "-R"], &["-t", "1", "-u", "-b", "50M", "-l", "4000"]] {
            let _server = serve(server.host, &["iperf3", "-s", "-1", "--forceflush"], "listening");
            let report = client.host.run("iperf3", &[&["-c", &to, "-J"], options].concat()).unwrap();
            let report: Value = serde_json::from_str(&report).unwrap();
            let sum = &report["end"]["sum_received"];
            let received = if sum.is_null() { &report["end"]["sum"]["bytes"] } else { &sum["bytes"] };
            assert!(received.as_u64() > Some(1_000_000), "IPv{family} {options:?}: {report}");
        }
    }
    assert_eq!(routed.stat().drops().remove("socket_overflow").unwrap_or(0), 0);
}

#[test]
fn names_are_resolved_over_udp_in_answers_of_all_sizes() {
    let Some(routed) = Routed::new(test_name!(), &["dig", "dnsmasq"], NAT) else { return };
    // 3 kB of text: an answer in fragments.
    let text: Vec<String> = (0..15).map(|number| format!("{number:0>200}")).collect();
    let record = format!("--txt-record=long.example,{}", text.join(","));
    let fixed = ["dnsmasq", "--keep-in-foreground", "--log-facility=-", "--conf-file=/dev/null", "--no-resolv"];
    let more = ["--no-hosts", "--pid-file=", "--user=root", "--edns-packet-max=4096", "--log-queries"];
    let names = ["--address=/short.example/198.18.2.77", "--address=/short.example/2001:db8:2::77", &record];
    let _server = serve(&routed.ground.b, &[&fixed[..], &more, &names].concat(), "started");
    for family in Family::ALL {
        let at = format!("@{}", address(*family, 2, 2));
        // Over UDP or not at all.
        let dig = |kind: &str, name: &str| {
            let words = ["+short", "+ignore", "+notcp", "+bufsize=4096", "+time=2", "+tries=2", &at, kind, name];
            routed.ground.a.run("dig", &words).unwrap()
        };
        assert_eq!(dig("A", "short.example"), "198.18.2.77\n");
        assert_eq!(dig("AAAA", "short.example"), "2001:db8:2::77\n");
        let long = dig("TXT", "long.example");
        assert!(text.iter().all(|text| long.contains(text)), "IPv{family}: {long}");
    }
}

#[test]
fn ping_and_traceroute_see_the_router_and_the_server() {
    let Some(routed) = Routed::new(test_name!(), &["ping", "traceroute"], NAT) else { return };
    for family in Family::ALL {
        traffic::pings(routed.client(*family), routed.server(*family), &[56, 1450, 1600, 9000, 60_000]);
        let (router, server) = (address(*family, 1, 1).to_string(), address(*family, 2, 2).to_string());
        for probe in [&[][..], &["-I"], &["-T", "-p", "9"]] {
            let words = [&["traceroute", "-n", "-q", "1", "-m", "4", "-w", "3"], probe, &[&server]].concat();
            let text = says(&routed.ground.a, &words);
            let hops: Vec<_> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
            assert_eq!(hops, [&router, &server], "{words:?}\n{text}");
        }
    }
    assert!(routed.stat().drops().keys().all(|reason| reason == "route_hop_limit"), "{:?}", routed.stat().drops());
}

#[test]
fn datagrams_of_all_sizes_come_back() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    for family in Family::ALL {
        let server = routed.server(*family);
        let echo = Echo::start(server, 0);
        let socket = traffic::socket(routed.client(*family));
        socket.connect((server.address, echo.port)).unwrap();
        traffic::echoes(&socket, traffic::DATAGRAM_SIZES, &mut Random::new(3));
    }
    assert_eq!(routed.stat().drops().into_iter().collect::<Vec<_>>(), []);
}

/// Script that sends a datagram in fragments, in reverse order; without the first one if `skip` is 1.
const REVERSED: &str = "
import sys
from scapy.all import IP, UDP, Raw, fragment, send, conf
conf.verb = 0
source, to, sport, dport, ident, skip = sys.argv[1:3] + [int(word) for word in sys.argv[3:]]
data = bytes(n * 7 % 251 for n in range(9000))
whole = IP(src=source, dst=to, id=ident) / UDP(sport=sport, dport=dport) / Raw(data)
for piece in reversed(fragment(whole, 1400)[skip:]):
    send(piece)
";

#[test]
fn fragments_may_come_in_any_order() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    if !Path::new("/usr/lib/python3/dist-packages/scapy").exists() {
        return skip(test_name!(), "not installed: python3-scapy");
    }
    let data: Vec<u8> = (0..9000_u32).map(|n| (n * 7 % 251) as u8).collect();
    let (client, server, outside) = (routed.client(V4), routed.server(V4), address(V4, 2, 9));
    let sockets = [client, server].map(traffic::socket);
    let [near, far] = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
    let send = |from: SocketAddr, to: SocketAddr, host: &Host, id: &str, skip: &str| {
        let ports = [from.port().to_string(), to.port().to_string()];
        let addresses = [from.ip().to_string(), to.ip().to_string()];
        let words = ["-c", REVERSED, &addresses[0], &addresses[1], &ports[0], &ports[1], id, skip];
        host.run("/usr/bin/python3", &words).unwrap();
    };
    let mut got = vec![0; 1 << 16];
    send(near, far, client.host, "77", "0");
    let (len, peer) = sockets[1].recv_from(&mut got).unwrap();
    assert!(peer.ip() == outside && got[..len] == data, "{len} bytes from {peer}");
    send(far, peer, server.host, "78", "0");
    let (len, from) = sockets[0].recv_from(&mut got).unwrap();
    assert!(from == far && got[..len] == data, "{len} bytes from {from}");
    assert_eq!(routed.stat().drops().into_iter().collect::<Vec<_>>(), []);
    // Those whose first one never comes are dropped by name.
    send(far, peer, server.host, "79", "1");
    let dropped = |stat: &Stat| stat.dropped("nat_fragment") == 6;
    let stat = Stat::until(&routed.router, &routed.ground.program, "gw0", PATIENCE, dropped);
    assert!(dropped(&stat), "{:?}", stat.drops());
}

#[test]
fn forwarded_ports_lead_inside() {
    let forwards = ["--forward", "tcp:8080=198.18.1.2:80", "--forward", "udp:53=198.18.1.2:5353"];
    let Some(routed) = Routed::new(test_name!(), &["curl", "python3"], &[NAT, &forwards].concat()) else { return };
    let directory = Directory::new();
    let bytes = Random::new(2).bytes(3_000_000);
    fs::write(directory.file("file"), &bytes).unwrap();
    let _web = web(routed.client(V4), "80", directory.path());
    let outside = address(V4, 2, 9);
    assert!(fetch(&routed.ground.b, (outside, 8080).into(), &directory.file("got")) == bytes);
    // And from inside, by the same address (hairpinning).
    assert!(fetch(&routed.ground.a, (outside, 8080).into(), &directory.file("got")) == bytes);
    let _echo = Echo::start(routed.client(V4), 5353);
    let socket = traffic::socket(routed.server(V4));
    socket.connect((outside, 53)).unwrap();
    traffic::echoes(&socket, traffic::DATAGRAM_SIZES, &mut Random::new(4));
    let refused =
        traffic::inside(&routed.ground.b, || TcpStream::connect_timeout(&(outside, 81).into(), Duration::from_secs(1)));
    assert!(refused.is_err(), "a port that is not forwarded is open");
    assert!(routed.stat().dropped("nat_no_mapping") > 0);
}

#[test]
fn the_listing_is_what_the_hosts_see() {
    let forwards = ["--forward", "tcp:443=198.18.1.7:8443"];
    let Some(routed) = Routed::new(test_name!(), &["ping"], &[NAT, &forwards].concat()) else { return };
    let (client, server) = (routed.client(V4), routed.server(V4));
    let listener = traffic::inside(server.host, || TcpListener::bind((server.address, 7000))).unwrap();
    let connect = || {
        let near = traffic::inside(client.host, || TcpStream::connect((server.address, 7000))).unwrap();
        let (far, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), address(V4, 2, 9), "the server sees the outside address");
        (near, far, peer.port())
    };
    let (mut near, mut far, open) = connect();
    for _ in 0..3 {
        near.write_all(b"there").unwrap();
        far.read_exact(&mut [0; 5]).unwrap();
    }
    let (closing, closed, closing_port) = connect();
    let closing_at = closing.local_addr().unwrap();
    closing.shutdown(Shutdown::Write).unwrap();
    drop((closing, closed));
    let echo = Echo::start(server, 0);
    let udp = traffic::socket(client);
    udp.connect((server.address, echo.port)).unwrap();
    traffic::echoes(&udp, &[100, 3000], &mut Random::new(1));
    traffic::pings(client, server, &[56]);
    let output = routed.segue(&["nat", "-j"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["schema"], &document["instances"][0]["name"]), (&"segue.nat/1".into(), &"gw0".into()));
    let mappings = document["instances"][0]["mappings"].as_array().unwrap();
    let of = |protocol: &str, inside: &str| {
        let is = |m: &&Value| m["protocol"] == protocol && m["inside"].as_str().unwrap().starts_with(inside);
        mappings.iter().find(is).unwrap_or_else(|| panic!("no {protocol} {inside} in {document}"))
    };
    let line = |m: &Value| (m["outside"].clone(), m["state"].clone());
    assert_eq!(line(of("tcp", &near.local_addr().unwrap().to_string())), (open.into(), "open".into()));
    assert_eq!(line(of("tcp", &closing_at.to_string())), (closing_port.into(), "closing".into()));
    assert_eq!(line(of("tcp", "198.18.1.7:8443")), (443.into(), "static".into()));
    assert_eq!(of("udp", &udp.local_addr().unwrap().to_string())["state"], Value::Null);
    assert_eq!(of("icmp", "198.18.1.2:")["out"], 1);
    assert_eq!(of("icmp", "198.18.1.2:")["in"], 1);
    let busy = of("tcp", &near.local_addr().unwrap().to_string());
    assert!(busy["out"].as_u64() >= Some(5) && busy["in"].as_u64() >= Some(4), "{busy}");
    // What the schema demands is there, and there is nothing else.
    let schema: Value = serde_json::from_slice(&routed.segue(&["schema", "nat"]).stdout).unwrap();
    let properties = schema["$defs"]["Mapping"]["properties"].as_object().unwrap();
    let required = schema["$defs"]["Mapping"]["required"].as_array().unwrap();
    for mapping in mappings.iter().map(|mapping| mapping.as_object().unwrap()) {
        assert!(mapping.keys().all(|key| properties.contains_key(key)), "{mapping:?}");
        assert!(required.iter().all(|key| mapping.contains_key(key.as_str().unwrap())), "{mapping:?}");
    }
    // The same for people.
    let text = String::from_utf8(routed.segue(&["nat", "gw0"]).stdout).unwrap();
    assert_eq!(text.lines().count(), mappings.len() + 2, "{text}");
    assert!(text.contains(&near.local_addr().unwrap().to_string()), "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
}

#[test]
fn senders_hear_what_stops_their_packets() {
    let Some(routed) = Routed::new(test_name!(), &["ping"], NAT) else { return };
    routed.add_routes(&["blackhole 198.19.1.0/24", "prohibit 198.19.2.0/24", "unreachable 2001:db8:77::/64"]);
    let ping = |to: &str| says(&routed.ground.a, &["ping", "-n", "-c", "1", "-W", "4", to]);
    for (to, words) in [
        ("203.0.113.1", "Destination Net Unreachable"),
        ("198.19.2.1", "Packet filtered"),
        ("198.18.2.200", "Destination Host Unreachable"),
        ("2001:db8:9::1", "No route"),
        ("2001:db8:77::1", "Address unreachable"),
        ("2001:db8:2::200", "Address unreachable"),
    ] {
        let text = ping(to);
        let router = if to.contains(':') { "From 2001:db8:1::1" } else { "From 198.18.1.1" };
        assert!(text.contains(words) && text.contains(router), "{to}: {text}");
    }
    assert!(ping("198.19.1.1").contains("100% packet loss"));
    // A port that is closed, behind the NAT.
    for family in Family::ALL {
        let socket = traffic::socket(routed.client(*family));
        socket.connect((address(*family, 2, 2), 9)).unwrap();
        socket.send(b"anybody?").unwrap();
        let error = socket.recv(&mut [0; 9]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED), "IPv{family}");
    }
    let drops = routed.stat().drops();
    for reason in ["route_none", "route_prohibited", "route_unreachable", "route_no_neighbour", "route_blackhole"] {
        assert!(drops.contains_key(reason), "{reason} is not in {drops:?}");
    }
}

#[test]
fn df_senders_learn_the_path_mtu_and_other_packets_are_fragmented() {
    let Some(routed) = Routed::new(test_name!(), &["ping"], NAT) else { return };
    ip(&routed.router, "link set out mtu 1400");
    ip(&routed.ground.b, "link set eth0 mtu 1400");
    // The router reads the MTU with the tables.
    routed.add_routes(&["blackhole 198.19.1.0/24"]);
    let ping =
        |df: &str, to: &str| says(&routed.ground.a, &["ping", "-n", "-c", "1", "-W", "3", "-M", df, "-s", "1450", to]);
    let answered = ping("dont", "198.18.2.2");
    assert!(answered.contains(" 0% packet loss"), "{answered}");
    let text = ping("do", "198.18.2.2");
    assert!(text.contains("Frag needed and DF set (mtu = 1400)"), "{text}");
    let text = ping("do", "2001:db8:2::2");
    assert!(text.contains("Packet too big: mtu=1400"), "{text}");
    for family in Family::ALL {
        let to = (address(*family, 2, 2), 9);
        let socket = traffic::socket(routed.client(*family));
        sys::forbid_fragments(&socket).unwrap();
        let refused = (0..250).any(|_| {
            let error = socket.send_to(&[1; 1440], to).err();
            thread::sleep(Duration::from_millis(20));
            error.is_some_and(|error| error.raw_os_error() == Some(libc::EMSGSIZE))
        });
        assert!(refused, "IPv{family}: a sender of datagrams hears EMSGSIZE");
        let seen = if *family == V4 { address(V4, 2, 9) } else { address(V6, 1, 2) };
        traffic::file_seen_from(seen, routed.client(*family), routed.server(*family), 2_000_000, 7);
    }
}

#[test]
fn unreachable_hosts_do_not_delay_other_traffic() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    // Every frame has a place in the ring of its own.
    for port in PORTS {
        routed.router.run("ethtool", &["-K", port, "gro", "off"]).unwrap();
    }
    let socket = traffic::socket(routed.client(V4));
    for host in 100..140 {
        socket.send_to(b"anybody?", (address(V4, 2, host), 9)).unwrap();
    }
    // More than the ring has places for.
    traffic::file(routed.client(V6), routed.server(V6), 24 << 20, 5);
    traffic::file(routed.server(V6), routed.client(V6), 24 << 20, 6);
    assert_eq!(routed.stat().dropped("socket_overflow"), 0, "what waits for a neighbour keeps no place in the ring");
}

#[test]
fn neighbours_and_routes_are_those_of_the_kernel() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    let echo = Echo::start(routed.server(V4), 0);
    let reach = || {
        let socket = traffic::inside(&routed.ground.a, || UdpSocket::bind((address(V4, 1, 2), 0))).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.connect((address(V4, 2, 2), echo.port)).unwrap();
        socket.send(b"there?").and_then(|_| socket.recv(&mut [0; 9])).is_ok()
    };
    let soon = |wanted: bool, what: &str| {
        let is = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(20));
            reach() == wanted
        });
        assert!(is, "{what}");
    };
    soon(true, "it is asked for here");
    ip(&routed.router, "neigh replace 198.18.2.2 lladdr 02:00:00:00:00:99 dev out nud permanent");
    soon(false, "what was set by hand counts");
    ip(&routed.router, "neigh del 198.18.2.2 dev out");
    soon(true, "it is asked for again");
    ip(&routed.router, "route add unreachable 198.18.2.2/32");
    soon(false, "a route that came");
    ip(&routed.router, "route del unreachable 198.18.2.2/32");
    soon(true, "a route that went");
    // The server's card is changed for another one.
    ip(&routed.ground.b, "link set eth0 address 02:00:00:00:00:55");
    ip(&routed.ground.b, "neigh flush all");
    let pinged = says(&routed.router, &["ping", "-c", "1", "-W", "2", "198.18.2.2"]);
    soon(true, &pinged);
}
