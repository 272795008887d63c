//! Tests of segue against a real kernel's tunnels: a guest with Debian's Linux, opposite `segue tunnel`, in every mode,
//! all in one boot. The guest's tap carries finished frames only, so its own stack segments and checksums.

#[path = "common/malformed.rs"]
mod malformed;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{self, V4, V6};
use segue_lab::{Host, Process};
use segue_tests::traffic::{self, Digested};
use segue_tests::{Ground, Random, Stat, Tunnel, capture, fastpath, guest, skip, sys, test_name};

/// Returns whether `SEGUE_FULL` is set: then all sizes are tested, and segue runs in the guest too.
fn is_full() -> bool {
    segue_testkit::is_set("SEGUE_FULL")
}

/// Returns the length of each file, bytes.
fn file_len() -> u64 {
    if is_full() { 4 << 20 } else { 256 << 10 }
}

const BOOT: Duration = Duration::from_secs(120);
const TURN: Duration = Duration::from_secs(150);

/// Number, outer family, inner families and words of each tunnel at the host; guest.sh has the matching ends.
const TUNNELS: &[(u8, Family, &[Family], &str)] = &[
    (1, V4, &[V4], "mode ipip encap gue encap-dport 6080"),
    (2, V4, &[V4], "mode ipip encap gue encap-dport 6080 encap-remcsum"),
    (3, V4, &[V4], "mode ipip encap fou encap-dport 5554"),
    (4, V4, &[V6], "mode sit encap gue encap-dport 6080"),
    (5, V4, &[V6], "mode sit encap gue encap-dport 6080 encap-remcsum"),
    (6, V4, &[V6], "mode sit encap fou encap-dport 5541"),
    (7, V4, &[V4, V6], "mode gre encap gue encap-dport 6080"),
    (8, V4, &[V4, V6], "mode gre encap gue encap-dport 6080 encap-remcsum"),
    (9, V4, &[V4, V6], "mode gre encap fou encap-dport 5547"),
    (10, V4, &[V4, V6], "mode gre key 12345 csum encap gue encap-dport 6080 encap-remcsum"),
    (11, V6, &[V4, V6], "mode ip6gre encap gue encap-dport 6086 encap-remcsum"),
    (12, V6, &[V4, V6], "mode ip6tnl encap gue encap-dport 6086"),
    (13, V4, &[V4], "mode ipip fastpath require"),
    (14, V4, &[V6], "mode sit fastpath require"),
    (15, V4, &[V4, V6], "mode gre fastpath require"),
    (16, V4, &[V4, V6], "mode gre key 12345 csum"),
    (17, V4, &[V4, V6], "mode gretap"),
    (18, V6, &[V4, V6], "mode ip6gre fastpath require"),
    (19, V6, &[V4, V6], "mode ip6tnl fastpath require"),
    (20, V4, &[V4, V6], "mode gretap encap gue encap-dport 6080 encap-remcsum"),
    (21, V4, &[V4, V6], "mode vxlan id 42 dstport 4789"),
    (22, V4, &[V4, V6], "mode vxlan id 42 dstport 4790 remcsumtx remcsumrx"),
    (23, V6, &[V4, V6], "mode vxlan id 43 dstport 4791 udp6zerocsumtx udp6zerocsumrx"),
    (24, V4, &[V4, V6], "mode geneve id 42"),
    (25, V4, &[V4, V6], "mode gre key 12345 csum encap gue encap-dport 6080"),
    (26, V4, &[V4, V6], "mode gre key 12345 csum encap fou encap-dport 5547"),
    (27, V4, &[V4, V6], "mode gretap encap gue encap-dport 6080"),
    (28, V4, &[V4, V6], "mode gretap encap fou encap-dport 5547"),
    (29, V6, &[V4, V6], "mode ip6gre encap gue encap-dport 6086"),
    (30, V6, &[V4, V6], "mode ip6gre encap fou encap-dport 5647"),
    (31, V6, &[V4, V6], "mode ip6tnl encap gue encap-dport 6086 encap-remcsum"),
    // Linux has one protocol for a FOU port, so one family.
    (32, V6, &[V6], "mode ip6tnl encap fou encap-dport 5641"),
    (33, V6, &[V4], "mode ip6tnl encap fou encap-dport 5604"),
    (34, V4, &[V4, V6], "mode gre encap gue encap-dport 6080 noencap-csum fastpath require"),
    (35, V4, &[V4], "mode ipip encap fou encap-dport 5554 noencap-csum fastpath require"),
    (36, V4, &[V4, V6], "mode gre fastpath off"),
    (37, V4, &[V4, V6], "mode vxlan id 44 dstport 4792 noudpcsum fastpath require"),
    (38, V4, &[V4, V6], "mode geneve id 44 dstport 6082 noudpcsum fastpath require"),
    (51, V4, &[V4], "mode ipip fastpath require"),
    (52, V4, &[V4, V6], "mode vxlan id 45 dstport 4793 noudpcsum fastpath require"),
];
/// Numbers of the tunnels that segue serves at both ends, over the in-kernel path of the guest, whose kernel has no tcx
/// links; only if all sizes are tested.
const OWN: RangeInclusive<u8> = 51..=52;
/// The guest's segue tunnels that receive only datagrams that must not be delivered, with their UDP ports: two of VXLAN
/// and two of GRE in GUE, the first of each on the in-kernel path, the second in the daemon; only if all sizes are
/// tested.
const JUDGED: [[(u8, u16); 2]; 2] = [[(53, 4794), (54, 4795)], [(55, 6090), (56, 6090)]];
/// Number of times that each of those datagrams is sent.
const TIMES: usize = 2;

fn chosen() -> impl Iterator<Item = &'static (u8, Family, &'static [Family], &'static str)> {
    TUNNELS.iter().filter(|(net, ..)| is_full() || !OWN.contains(net))
}

/// Keywords of a tunnel that takes the in-kernel path.
const REQUIRE: &str = "fastpath require";

/// Tunnels without UDP in one process, on one raw socket: all between the same two addresses and distinguished by GRE
/// keys.
const TOGETHER: RangeInclusive<u8> = 41..=48;
const TOGETHER_OUTER: u8 = 40;

/// Returns a configuration of `segue run` with all of [`TOGETHER`]: GRE and Ethernet in GRE in turn.
fn together(host: &Host, program: &Path, directory: &capture::Directory) -> Process {
    let (local, remote) = (outer(TOGETHER_OUTER, V4, 1), outer(TOGETHER_OUTER, V4, 2));
    host.run("ip", &["addr", "add", &format!("{local}/24"), "dev", "tap0"]).unwrap();
    let before = raw_gre_sockets(host);
    let mut text = String::new();
    for net in TOGETHER {
        let mode = if net.is_multiple_of(2) { "gre" } else { "gretap" };
        let (key, near) = (net / 2, inner(net, V4, 1));
        let ends = format!("local = \"{local}\"\nremote = \"{remote}\"");
        write!(text, "[[tunnel]]\ndev = \"sg{net}\"\nmode = \"{mode}\"\n{ends}\nkey = {key}\naddr = [\"{near}/24\"]\n")
            .unwrap();
    }
    let file = directory.file("together.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = host.command(program);
    command.args(["run", "-j", "-c"]).arg(&file);
    let mut process = Process::spawn(command, b"").unwrap();
    let ready = process.wait_for_line("\"event\":\"ready\"", Duration::from_secs(20));
    ready.unwrap_or_else(|error| panic!("{error}\n{}", process.last_words()));
    assert_eq!(raw_gre_sockets(host) - before, 2, "raw sockets of {}: one to receive, one to send", process.line());
    process
}

fn raw_gre_sockets(host: &Host) -> usize {
    host.run("cat", &["/proc/net/raw"]).unwrap().lines().filter(|line| line.contains(":002F ")).count()
}

fn outer(net: u8, family: Family, host: u8) -> IpAddr {
    match family {
        V4 => IpAddr::from([198, 18, net, host]),
        // The guest's script writes the number as it is, so its digits are hexadecimal ones.
        V6 => IpAddr::from([0x2001, 0xdb8, 0xffff, digits(net), 0, 0, 0, u16::from(host)]),
    }
}

fn inner(net: u8, family: Family, host: u8) -> IpAddr {
    match family {
        V4 => IpAddr::from([198, 19, net, host]),
        V6 => IpAddr::from([0x2001, 0xdb8, digits(net), 0, 0, 0, 0, u16::from(host)]),
    }
}

fn digits(net: u8) -> u16 {
    u16::from_str_radix(&net.to_string(), 16).expect("decimal digits are hexadecimal digits")
}

/// A booting or running guest.
struct Guest(Process);

impl Guest {
    fn boot(host: &Host, cache: &Path, run: &Path, program: &Path) -> Guest {
        host.run("ip", &["tuntap", "add", "dev", "tap0", "mode", "tap"]).unwrap();
        host.run("ip", &["link", "set", "tap0", "up"]).unwrap();
        host.run("ip", &["addr", "add", "198.18.0.1/24", "dev", "tap0"]).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest.sh");
        let mut command = host.command("bash");
        command.arg(run).arg("--cache").arg(cache).args(["--tap", "tap0", "--timeout", "300"]);
        command.arg("--env").arg(format!("FILE_LEN={}", file_len())).arg("--script").arg(script);
        let (directory, name) = (program.parent().expect("a directory"), program.file_name().expect("a name"));
        if is_full() {
            command.arg("--share-ro").arg(directory).arg("--env").arg(format!("SEGUE={}", name.display()));
        }
        Guest(Process::spawn(command, b"").unwrap())
    }

    /// Returns the lines that the guest has printed so far, without their prefix.
    fn lines(&self) -> Vec<String> {
        let text = self.0.stdout();
        text.lines().filter_map(|line| line.trim_end().strip_prefix("@ ")).map(String::from).collect()
    }

    #[track_caller]
    fn wait_for(&mut self, line: &str, longest: Duration) {
        assert!(self.says(line, longest), "no `{line}` from the guest: {}", self.all());
    }

    /// Waits until the guest prints `line`; returns `false` on timeout or when the guest has ended.
    fn says(&mut self, line: &str, longest: Duration) -> bool {
        let begin = Instant::now();
        while !self.lines().iter().any(|said| said == line) {
            if self.0.ended().is_some() || begin.elapsed() >= longest {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Returns whether the guest's own network interface answers pings, without a tunnel.
    fn answers(host: &Host) -> bool {
        host.run("ping", &["-c", "3", "-i", "0.3", "-W", "2", "198.18.0.2"]).is_ok()
    }

    /// Returns the text after `word` in each of the guest's lines that begin with it.
    fn said(&self, word: &str) -> Vec<String> {
        let rest = |line: String| line.strip_prefix(word).map(|rest| rest.trim().to_string());
        self.lines().into_iter().filter_map(rest).collect()
    }

    fn all(&mut self) -> String {
        format!("{}\n{}", self.0.stdout(), self.0.stderr())
    }
}

#[test]
fn a_guest_with_a_real_kernel_exchanges_everything_with_segue_in_every_mode() {
    let (cache, run) = match guest::find() {
        Ok(found) => found,
        Err(why) => return skip(test_name!(), &why),
    };
    // An emulated network card may stand still, rarely, and then nothing passes, with segue or without.
    if !is_exchanged(test_name!(), &cache, &run) {
        eprintln!("the guest's own interface did not answer any more; once again from the beginning");
        assert!(is_exchanged(test_name!(), &cache, &run), "the guest's own interface stood still twice");
    }
}

/// Runs a guest once; returns `false` if its network card stopped working, in which case nothing was tested.
fn is_exchanged(name: &'static str, cache: &Path, run: &Path) -> bool {
    let tools = ["bash", "cpio", "qemu-system-x86_64", "ping"];
    let Some(ground) = Ground::apart(name, &tools) else { return true };
    let host = &ground.a;
    let mut guest = Guest::boot(host, cache, run, &ground.program);

    // While it boots.
    let without_path = fastpath::missing(&ground);
    if let Some(why) = &without_path {
        skip(name, &format!("no tunnel takes the in-kernel path: {why}"));
    }
    let mut tunnels = Vec::new();
    for (net, family, families, words) in chosen() {
        let (local, remote) = (outer(*net, *family, 1), outer(*net, *family, 2));
        match family {
            V4 => host.run("ip", &["addr", "add", &format!("{local}/24"), "dev", "tap0"]),
            V6 => host.run("ip", &["addr", "add", &format!("{local}/64"), "dev", "tap0", "nodad"]),
        }
        .unwrap();
        let fixed = format!("dev sg{net} local {local} remote {remote} {words}");
        let addresses = families.iter().map(|inside| match inside {
            V4 => format!(" addr {}/24", inner(*net, V4, 1)),
            V6 => format!(" addr {}/64", inner(*net, V6, 1)),
        });
        let mut words = fixed + &addresses.collect::<String>();
        if without_path.is_some() {
            words = words.replace(REQUIRE, "fastpath auto");
        }
        let words: Vec<String> = words.split(' ').map(String::from).collect();
        tunnels.push(Tunnel::start(host, &ground.program, &words));
    }
    let directory = capture::Directory::new();
    let _together = together(host, &ground.program, &directory);
    guest.wait_for("ready", BOOT);
    let flows: Vec<(u8, Family)> = chosen()
        .flat_map(|(net, _, families, _)| families.iter().map(|family| (*net, *family)))
        .chain(TOGETHER.map(|net| (net, V4)))
        .collect();

    for (net, family) in &flows {
        from_the_host(host, inner(*net, *family, 1), inner(*net, *family, 2), u64::from(*net));
    }
    let judged = if is_full() { &JUDGED[..] } else { &[] };
    let refused: Vec<u64> = judged.iter().map(|tunnels| send_wrong(host, *tunnels)).collect();
    let Some((arrived, mut guest)) = from_the_guest(host, guest, flows.len()) else { return false };

    let sent = Digested { len: file_len(), sha256: guest.said("file").concat() };
    assert_eq!(sent.sha256.len(), 64, "{}", guest.all());
    for (peer, got) in &arrived {
        assert_eq!(*got, sent, "the guest's file from {peer}");
    }
    let from: BTreeSet<IpAddr> = arrived.iter().map(|(peer, _)| *peer).collect();
    assert_eq!(from, flows.iter().map(|(net, family)| inner(*net, *family, 2)).collect(), "files came from");
    let clients = guest.said("client");
    let expected: Vec<String> = flows.iter().map(|(net, family)| format!("{net} {family} ok")).collect();
    assert_eq!(clients, expected);

    // The guest's kernel checked every checksum: none was wrong.
    let counters = guest.said("counter");
    for name in
        ["TcpInCsumErrors", "TcpInErrs", "UdpInCsumErrors", "Udp6InCsumErrors", "IcmpInCsumErrors", "t1.rx_errors"]
    {
        assert!(counters.iter().any(|line| line.starts_with(&format!("{name} "))), "no {name} in {counters:?}");
    }
    let wrong: Vec<&String> = counters.iter().filter(|line| !line.ends_with(" 0")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");

    if is_full() {
        by_the_guests_kernel(&guest);
        judged_alike(&guest, &refused);
    }
    let separate = chosen().map(|(net, _, families, words)| (*net, *families, *words));
    // Those of one process count together, under the name of the first.
    for (net, families, words) in separate.chain([(*TOGETHER.start(), &[V4][..], "together")]) {
        let device = format!("sg{net}");
        let stat = Stat::read(host, &ground.program, &device);
        if words.ends_with(REQUIRE) && without_path.is_none() {
            let taken = ["sent", "received"].map(|key| stat.count(&device, "fastpath", key));
            // A packet has at most 1,500 bytes of a file.
            assert!(
                taken.iter().all(|count| *count > file_len() / 1500),
                "{words}: {taken:?} by the path: {}",
                stat.json()
            );
        }
        let mut drops = stat.drops();
        // Router solicitations and multicast reports of both stacks, which a tunnel of IPv4 does not take.
        if !families.contains(&V6) {
            drops.remove("inner_version");
        }
        // From before the guest was there.
        drops.remove("unreachable");
        assert!(drops.is_empty(), "{words}: {drops:?}");
    }
    let status = guest.0.wait(Duration::from_secs(20)).unwrap();
    assert!(status.success(), "{status}: {}", guest.all());
    true
}

/// Checks that segue in the guest carried its tunnels over the in-kernel path, and the state after it is killed.
fn by_the_guests_kernel(guest: &Guest) {
    for net in OWN {
        let stat = stat_of(guest, net);
        assert_eq!(stat.json()["fastpath"]["on"], true, "{net}: {}", stat.json()["fastpath"]);
        for direction in ["sent", "received"] {
            let count = stat.count(&format!("t{net}"), "fastpath", direction);
            assert!(count > file_len() / 1500, "{net}: {count} {direction}: {}", stat.json());
        }
    }
    // One for each tunnel by the path; that of the killed one stays until the next start.
    assert_eq!(guest.said("filters"), ["before 4", "killed 4", "again 4"]);
}

/// Returns the counters of a tunnel of segue in the guest.
fn stat_of(guest: &Guest, net: u8) -> Stat {
    let said = guest.said("stat");
    Stat::parse(said.iter().find_map(|line| line.strip_prefix(&format!("{net} "))).expect("its counters"))
}

/// Sends several tunnels of the guest the same datagrams, none of which may be delivered: malformed ones, a good one
/// with a congestion mark that it must not have, and a good one from another host. Returns how many each tunnel has
/// got.
fn send_wrong(host: &Host, tunnels: [(u8, u16); 2]) -> u64 {
    let is_vxlan = tunnels == JUDGED[0];
    let (all, good) = match is_vxlan {
        true => (malformed::frames(), malformed::good_frame()),
        false => (malformed::all(), malformed::good()),
    };
    for (net, port) in tunnels {
        for number in [1, 77] {
            let address = format!("{}/24", outer(net, V4, number));
            host.run("ip", &["addr", "add", &address, "dev", "tap0"]).unwrap();
        }
        let speak = |from: u8, tos: u8| {
            let socket = traffic::inside(host, || UdpSocket::bind((outer(net, V4, from), 0))).unwrap();
            socket.connect((outer(net, V4, 2), port)).unwrap();
            // The kernel's UDP judges those with one.
            sys::send_without_checksum(&socket).unwrap();
            sys::set_tos(&socket, tos).unwrap();
            socket
        };
        let (peer, marked, stranger) = (speak(1, 0), speak(1, 3), speak(77, 0));
        let wrong = all.iter().map(|bytes| (&peer, bytes)).chain([(&marked, &good), (&stranger, &good)]);
        for (socket, bytes) in wrong.flat_map(|one| [one; TIMES]) {
            socket.send(bytes).unwrap();
            // An emulated network card loses some of many at once.
            thread::sleep(Duration::from_millis(2));
        }
    }
    (TIMES * (all.len() + 2)) as u64
}

/// Checks that the guest's in-kernel path has dropped the datagrams for the same reasons as the daemon would, and most
/// of them without the daemon.
fn judged_alike(guest: &Guest, sent: &[u64]) {
    assert_eq!(sent.len(), JUDGED.len());
    for (tunnels, sent) in JUDGED.iter().zip(sent) {
        let [path, daemon] = tunnels.map(|(net, _)| stat_of(guest, net));
        let is_on = [&path, &daemon].map(|stat| stat.json()["fastpath"]["on"] == true);
        assert_eq!(is_on, [true, false], "{}", path.json()["fastpath"]);
        assert_eq!(path.drops(), daemon.drops(), "the guest's kernel, and the daemon");
        assert_eq!(path.drops().values().sum::<u64>(), *sent, "{:?}", path.drops());
        assert!(path.drops().len() >= 8, "{:?}", path.drops());
        let left = fastpath::left_in_all(&path);
        assert!(left > 0 && left < sent * 3 / 4, "{left} of {sent} were left to the daemon: {}", path.json());
    }
}

/// Runs the host's half of the exchange: a file that the guest hashes, datagrams that it echoes, pings that it answers.
fn from_the_host(host: &Host, near: IpAddr, far: IpAddr, seed: u64) {
    let stream = traffic::inside(host, || TcpStream::connect_timeout(&(far, 5001).into(), Duration::from_secs(20)));
    let sent = stream.and_then(|stream| traffic::send_file_and_read(stream, file_len(), seed));
    let (sent, answer) = sent.unwrap_or_else(|error| panic!("a file to {far}: {error}"));
    let hash = String::from_utf8_lossy(&answer);
    assert_eq!(hash.split_whitespace().next(), Some(sent.sha256.as_str()), "the hash of the file at {far}");

    let place = traffic::Place { host, address: near };
    let socket = traffic::socket(place);
    socket.connect((far, 5002)).unwrap();
    traffic::echoes(&socket, &[1, 2, 63, 64, 501, 1300, 1472, 1473, 2600, 9000], &mut Random::new(seed));
    traffic::pings(place, traffic::Place { host, address: far }, traffic::PING_SIZES);
}

/// Runs the guest's half of the exchange: pings to the host, and its file once over each flow; returns the sources of
/// the files, and their digests. None where its network card stood still.
fn from_the_guest(host: &Host, mut guest: Guest, flows: usize) -> Option<(Vec<(IpAddr, Digested)>, Guest)> {
    let listener = traffic::inside(host, || TcpListener::bind("[::]:5010")).unwrap();
    let (tell, hear) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().take(flows) {
            let received = stream.and_then(|stream| {
                let peer = stream.peer_addr()?.ip().to_canonical();
                Ok((peer, traffic::receive_file(stream)?))
            });
            if tell.send(received).is_err() {
                return;
            }
        }
    });
    traffic::inside(host, || TcpStream::connect_timeout(&([198, 18, 0, 2], 5999).into(), Duration::from_secs(5)))
        .unwrap();
    if !guest.says("end", TURN) {
        assert!(!Guest::answers(host), "the guest answers, but does not come to its end: {}", guest.all());
        return None;
    }
    let one =
        || hear.recv_timeout(Duration::from_secs(10)).expect("a file for every flow, as the guest says it has sent");
    let arrived = (0..flows).map(|_| one().unwrap_or_else(|error: io::Error| panic!("a file from the guest: {error}")));
    Some((arrived.collect(), guest))
}
