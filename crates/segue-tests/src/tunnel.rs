//! Command lines of tunnels, and their processes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, Host, Peer, Process, reach};

use crate::{Ground, Stat};

/// Time within which a tunnel must carry datagrams.
const PATIENCE: Duration = Duration::from_secs(60);

/// The mode of a tunnel, which determines the inner protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// The mode `ipip`: inner IPv4 packets.
    Ipip,
    /// The mode `sit`: inner IPv6 packets.
    Sit,
    /// GRE with packets of both IP versions.
    Gre,
    /// GRE with key and checksum, with packets of both IP versions.
    GreKeyCsum,
    /// Packets of both IP versions directly in IPv6 (ip6tnl).
    Ip6tnl,
    /// GRE with Ethernet frames (gretap).
    Gretap,
    /// VXLAN with UDP checksums.
    Vxlan,
    /// VXLAN with remote checksum offload in both directions.
    VxlanRemcsum,
    /// VXLAN without UDP checksums.
    VxlanZero,
    /// Geneve with UDP checksums.
    Geneve,
}

/// The UDP encapsulation of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Generic UDP Encapsulation (GUE).
    Gue,
    /// GUE with remote checksum offload.
    GueRemcsum,
    /// Foo over UDP (FOU).
    Fou,
    /// Carrier without an encapsulation: IP itself, or that of the mode.
    Bare,
}

/// A kind of tunnel: its mode, encapsulation, outer family and more options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The mode of the tunnel, which determines the inner protocol.
    pub inside: Inside,
    /// The UDP encapsulation of a tunnel.
    pub carrier: Carrier,
    /// Family of the tunnel's outer addresses.
    pub outer: Family,
    /// Further words of the command line, for both ends.
    pub extra: &'static [&'static str],
}

/// One end of a tunnel: a running `segue tunnel`.
#[derive(Debug)]
pub struct Tunnel {
    /// Name of the device and of the instance.
    pub device: String,
    /// The process of this tunnel end.
    pub process: Process,
}

/// Both ends of a tunnel that carries datagrams. It is dropped before its hosts.
#[derive(Debug)]
pub struct Pair<'a> {
    /// The tunnel endpoint at host A.
    pub at_a: Tunnel,
    /// The tunnel endpoint at host B.
    pub at_b: Tunnel,
    ground: &'a Ground,
    shape: Shape,
    net: u8,
}

impl Inside {
    /// Returns the families that the mode carries.
    pub fn families(self) -> &'static [Family] {
        match self {
            Inside::Ipip => &[Family::V4],
            Inside::Sit => &[Family::V6],
            _ => Family::ALL,
        }
    }

    /// Returns whether the mode includes a UDP header, so that it needs no `encap`.
    pub fn brings_udp(self) -> bool {
        matches!(self, Inside::Vxlan | Inside::VxlanRemcsum | Inside::VxlanZero | Inside::Geneve)
    }

    /// Returns the mode's words on the command line.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Inside::Ipip => &["mode", "ipip"],
            Inside::Sit => &["mode", "sit"],
            Inside::Gre => &["mode", "gre"],
            Inside::GreKeyCsum => &["mode", "gre", "key", "3735928559", "csum"],
            Inside::Ip6tnl => &["mode", "ip6tnl"],
            Inside::Gretap => &["mode", "gretap", "key", "7"],
            Inside::Vxlan => &["mode", "vxlan", "id", "42"],
            Inside::VxlanRemcsum => &["mode", "vxlan", "id", "42", "remcsumtx", "remcsumrx"],
            Inside::VxlanZero => &["mode", "vxlan", "id", "42", "noudpcsum", "udp6zerocsumtx", "udp6zerocsumrx"],
            Inside::Geneve => &["mode", "geneve", "id", "16777215"],
        }
    }
}

impl Carrier {
    /// Returns the encapsulation's words on the command line.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Carrier::Gue => &["encap", "gue"],
            Carrier::GueRemcsum => &["encap", "gue", "encap-remcsum"],
            Carrier::Fou => &["encap", "fou"],
            Carrier::Bare => &[],
        }
    }
}

impl Shape {
    /// Makes a kind of tunnel without more words.
    pub const fn new(inside: Inside, carrier: Carrier, outer: Family) -> Shape {
        Shape { inside, carrier, outer, extra: &[] }
    }

    /// Returns the words after `segue tunnel` for one end of tunnel number `net`, which listens on [`Shape::port`].
    pub fn words(&self, end: Peer, net: u8) -> Vec<String> {
        let (local, remote) = (end.address(0, self.outer).to_string(), end.other().address(0, self.outer).to_string());
        let (device, port) = (Shape::device(net), Shape::port(net).to_string());
        let fixed = ["dev", &device, "local", &local, "remote", &remote];
        let has_port = self.carrier != Carrier::Bare || self.inside.brings_udp();
        let port = if has_port { &["encap-dport", &port][..] } else { &[] };
        let addresses = self.inside.families().iter().flat_map(|family| ["addr".into(), end.prefix(net, *family)]);
        // The daemon is under test, where the in-kernel path is not asked for.
        let fastpath = if self.extra.contains(&"fastpath") { &[][..] } else { &["fastpath", "off"] };
        let words = fixed.iter().chain(port).chain(self.inside.words()).chain(self.carrier.words()).chain(fastpath);
        let words = words.chain(self.extra);
        words.map(ToString::to_string).chain(addresses).collect()
    }

    /// Returns the name of the device of tunnel number `net`.
    pub fn device(net: u8) -> String {
        format!("sg{net}")
    }

    /// Returns the UDP port of tunnel number `net`.
    pub fn port(net: u8) -> u16 {
        6080 + u16::from(net)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {:?} over IPv{} {:?}", self.inside, self.carrier, self.outer, self.extra)
    }
}

impl Tunnel {
    /// Starts `segue tunnel` with the given words in `host` and waits until its interface exists.
    #[track_caller]
    pub fn start(host: &Host, program: &Path, words: &[String]) -> Tunnel {
        let mut command = host.command(program);
        command.arg("tunnel").args(without_fastpath_off(program, words));
        let mut process = Process::spawn(command, b"").expect("segue starts");
        let device = words.iter().skip_while(|word| *word != "dev").nth(1).expect("a device").clone();
        let begin = Instant::now();
        while !is_up(host, &device) {
            let ended = process.ended();
            if ended.is_some() || begin.elapsed() > PATIENCE {
                let words = process.last_words();
                panic!("no {device} from `{}` ({ended:?})\n{words}", process.line());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Tunnel { device, process }
    }
}

/// Returns `words` without `fastpath off` for earlier programs, which had no in-kernel path and no such keyword.
fn without_fastpath_off(program: &Path, words: &[String]) -> Vec<String> {
    static KNOWS: Mutex<BTreeMap<PathBuf, bool>> = Mutex::new(BTreeMap::new());
    let mut programs = KNOWS.lock().expect("no test failed while it held the lock");
    let knows = *programs.entry(program.to_path_buf()).or_insert_with(|| {
        let help = Command::new(program).args(["tunnel", "--help"]).output().expect("segue runs");
        String::from_utf8_lossy(&help.stdout).contains("fastpath")
    });
    match words.windows(2).position(|pair| pair == ["fastpath", "off"]) {
        Some(place) if !knows => [&words[..place], &words[place + 2..]].concat(),
        _ => words.to_vec(),
    }
}

fn is_up(host: &Host, device: &str) -> bool {
    host.has_device(device)
        && host.run("ip", &["-o", "link", "show", "dev", device]).is_ok_and(|line| line.contains("UP"))
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        // One that still runs has only said that it is up.
        if thread::panicking() && self.process.ended().is_some() {
            let words = self.process.last_words();
            eprintln!("`{}` said:\n{words}", self.process.line());
        }
    }
}

impl<'a> Pair<'a> {
    /// Starts both ends of tunnel number `net` (1 or more) and waits until datagrams of every carried family get
    /// through.
    #[track_caller]
    pub fn start(ground: &'a Ground, shape: Shape, net: u8) -> Pair<'a> {
        let at_a = Tunnel::start(&ground.a, &ground.program, &shape.words(Peer::A, net));
        let at_b = Tunnel::start(&ground.b, &ground.program, &shape.words(Peer::B, net));
        let mut pair = Pair { at_a, at_b, ground, shape, net };
        for family in shape.inside.families() {
            let [a, b] = [Peer::A, Peer::B].map(|end| end.address(net, *family));
            if let Err(error) = reach((&ground.a, a), (&ground.b, b), PATIENCE) {
                let words = [&mut pair.at_a, &mut pair.at_b].map(|tunnel| tunnel.process.last_words());
                panic!("{shape} IPv{family} inside: {error}\nA: {}\nB: {}\n{}", words[0], words[1], pair.drops());
            }
        }
        pair
    }

    /// Returns the kind of tunnel.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the host and the inner address of an end.
    pub fn place(&self, end: Peer, family: Family) -> crate::traffic::Place<'a> {
        let host = match end {
            Peer::A => &self.ground.a,
            Peer::B => &self.ground.b,
        };
        crate::traffic::Place { host, address: end.address(self.net, family) }
    }

    /// Reads the counters at A and at B.
    #[track_caller]
    pub fn stat(&self) -> [Stat; 2] {
        let device = Shape::device(self.net);
        [&self.ground.a, &self.ground.b].map(|host| Stat::read(host, &self.ground.program, &device))
    }

    /// Returns the drops at both ends, for messages.
    #[track_caller]
    pub fn drops(&self) -> String {
        let [a, b] = self.stat();
        format!("drops at A {:?}, at B {:?}", a.drops(), b.drops())
    }

    /// Asserts that neither end has dropped a packet that it should have carried. The kernel itself sends IPv6 (router
    /// solicitations, multicast reports) into every interface, which a tunnel of IPv4 refuses under `inner_version`.
    /// See [`Stat::drops_but_overflow`] for full sockets.
    #[track_caller]
    pub fn assert_nothing_dropped(&self) {
        for (end, stat) in ["A", "B"].into_iter().zip(self.stat()) {
            let mut drops = stat.drops_but_overflow();
            if !self.shape.inside.families().contains(&Family::V6) {
                drops.remove("inner_version");
            }
            assert!(drops.is_empty(), "{}: {end} dropped {drops:?}", self.shape);
        }
    }

    /// Returns the path of the program `segue`.
    pub fn program(&self) -> PathBuf {
        self.ground.program.clone()
    }
}
