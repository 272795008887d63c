//! A kernel's own GRO, to be compared with: the kernel's that this process runs on, here or in the guest.
//!
//! A [`Gro`] is a number of veth pairs in the network namespace of the process. Frames go into one end by a packet socket, and
//! what the other end's GRO makes of them is read by another. The receiving end polls once, some milliseconds after it has
//! noticed the first frame (`napi_defer_hard_irqs` and `gro_flush_timeout`), so that a whole case is one poll. Whether it was
//! one is known: the first and the last frame of a burst are of a flow of their own, and join only then.

mod sys;

use std::fs;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use segue_testkit::build::{Ethernet, Ip, V4};
use segue_testkit::conformance::{
    Case, FOU_PORTS, FOU6_PORTS, Feature, GENEVE_PORT, GUE_PORT, Gso, GsoKind, Out, VXLAN_PORT, VXLAN_REMOTE_PORT,
};
use segue_testkit::flow::Sender;
use sys::{Received, Role, Socket};

/// How often a burst is sent that was not polled at once.
const TRIES: usize = 50;
/// What makes the receiving end notice: a frame of a type for experiments (IEEE 802, 0x88b5).
const PRIMER: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xfe, 0x88, 0xb5];
/// Source address of the frames that tell whether a burst was one poll.
const CANARY: [u8; 6] = [2, 0, 0, 0, 0, 0xca];

/// How long the receiving end waits between two polls.
#[derive(Clone, Copy, Debug)]
pub struct Pace(pub Duration);

/// veth pairs with GRO.
#[derive(Debug)]
pub struct Gro {
    pairs: Vec<(Socket, Ear)>,
    pace: Duration,
}

/// Hears all that a device receives.
///
/// Linux before 6.2 has no word for a UDP train in a virtio-net header, and refuses to hand it out with one, so there is a
/// second socket for the bytes.
#[derive(Debug)]
struct Ear {
    told: Socket,
    bare: Socket,
}

impl Ear {
    fn new(device: &str) -> io::Result<Ear> {
        Ok(Ear { told: Socket::open(device, Role::Hears)?, bare: Socket::open(device, Role::HearsBare)? })
    }

    fn receive(&self) -> io::Result<Option<Received>> {
        let told = match self.told.receive() {
            Ok(None) => return Ok(None),
            Ok(told) => told,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => None,
            Err(error) => return Err(error),
        };
        // Both get every frame, in the same order.
        self.bare.wait(Duration::from_secs(1))?;
        let bare = self.bare.receive()?;
        Ok(told.or(bare))
    }
}

impl Gro {
    /// Makes `count` pairs in this network namespace, which must be fresh.
    ///
    /// # Errors
    /// What could not be made, and why.
    pub fn new(count: usize, pace: Pace) -> Result<Gro, String> {
        // What no test asked for is not to be sent.
        let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        let mut pairs = Vec::new();
        for number in 0..count {
            let (near, far) = (format!("g{number}"), format!("h{number}"));
            run(&["ip", "link", "add", &near, "mtu", "9000", "type", "veth", "peer", "name", &far, "mtu", "9000"])?;
            // A sender that segments by itself is taken for a peer whose packets need no GRO.
            run(&["ethtool", "-K", &near, "tso", "off"])?;
            run(&["ethtool", "-K", &far, "gro", "on", "rx-udp-gro-forwarding", "on"])?;
            for (file, value) in
                [("napi_defer_hard_irqs", "1".to_string()), ("gro_flush_timeout", pace.0.as_nanos().to_string())]
            {
                let path = format!("/sys/class/net/{far}/{file}");
                fs::write(&path, value).map_err(|error| format!("{path}: {error}"))?;
            }
            run(&["ip", "link", "set", &far, "up"])?;
            run(&["ip", "link", "set", &near, "up"])?;
            let socket = Socket::open(&near, Role::Sends).map_err(|error| format!("{near}: {error}"))?;
            pairs.push((socket, Ear::new(&far).map_err(|error| format!("{far}: {error}"))?));
        }
        Ok(Gro { pairs, pace: pace.0 })
    }

    /// Makes what the kernel needs to join the carriers of a feature.
    ///
    /// # Errors
    /// What it refused.
    pub fn enable(&self, feature: Feature) -> Result<(), String> {
        let text = |port: u16| port.to_string();
        match feature {
            Feature::Plain | Feature::Ipip | Feature::Gre | Feature::Vlan => Ok(()),
            Feature::Vxlan => {
                run(&["ip", "link", "add", "vx0", "type", "vxlan", "external", "dstport", &text(VXLAN_PORT)])?;
                run(&["ip", "link", "set", "vx0", "up"])?;
                let words = ["ip", "link", "add", "vx1", "type", "vxlan", "id", "42", "remcsumrx", "dstport"];
                run(&[&words[..], &[&text(VXLAN_REMOTE_PORT)]].concat())?;
                run(&["ip", "link", "set", "vx1", "up"])
            }
            Feature::Geneve => {
                run(&["ip", "link", "add", "gn0", "type", "geneve", "external", "dstport", &text(GENEVE_PORT)])?;
                run(&["ip", "link", "set", "gn0", "up"])
            }
            Feature::Fou => {
                for (port, protocol) in FOU_PORTS {
                    run(&["ip", "fou", "add", "port", &text(port), "ipproto", &protocol.to_string()])?;
                }
                for (port, protocol) in FOU6_PORTS {
                    run(&["ip", "fou", "add", "port", &text(port), "ipproto", &protocol.to_string(), "-6"])?;
                }
                Ok(())
            }
            Feature::Gue => {
                run(&["ip", "fou", "add", "port", &text(GUE_PORT), "gue"])?;
                run(&["ip", "fou", "add", "port", &text(GUE_PORT), "gue", "-6"])
            }
        }
    }

    /// Sends the frames of each case as one burst, and gives what came out; `None` for one that never was one poll.
    ///
    /// # Errors
    /// From the sockets.
    pub fn run(&self, cases: &[&Case]) -> io::Result<Vec<Option<Vec<Out>>>> {
        let mut outcomes = vec![None; cases.len()];
        for _ in 0..TRIES {
            let open: Vec<usize> = (0..cases.len()).filter(|&case| outcomes[case].is_none()).collect();
            if open.is_empty() {
                break;
            }
            for some in open.chunks(self.pairs.len()) {
                for (&case, (near, far)) in some.iter().zip(&self.pairs) {
                    while far.receive()?.is_some() {}
                    burst(near, cases[case])?;
                }
                for (&case, (_, far)) in some.iter().zip(&self.pairs) {
                    outcomes[case] = self.gather(far, cases[case])?;
                }
            }
        }
        Ok(outcomes)
    }

    /// What came of a case, if it was one poll.
    fn gather(&self, far: &Ear, case: &Case) -> io::Result<Option<Vec<Out>>> {
        let deadline = Instant::now() + self.pace * 4 + Duration::from_millis(50);
        let (mut outs, mut canaries) = (Vec::new(), Vec::new());
        while canaries.is_empty() || !case.is_complete(&outs) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Something is missing, or is none of the frames: the judge will say what, if it was one poll.
                break;
            }
            far.told.wait(left.max(Duration::from_millis(1)))?;
            while let Some(received) = far.receive()? {
                if received.frame.get(12..14) == Some(&PRIMER[12..14]) {
                    continue;
                }
                let is_canary = received.frame.get(6..12) == Some(&CANARY);
                if is_canary { &mut canaries } else { &mut outs }.push(out(received));
            }
        }
        // Both in one train: all between them was one poll.
        Ok((canaries.len() == 1 && canaries[0].gso.is_some()).then_some(outs))
    }
}

fn burst(near: &Socket, case: &Case) -> io::Result<()> {
    let mut canary = Sender::tcp(Ip::V4(V4::new(200, 1, 2)), 999, 1, Vec::new());
    let link = Ethernet { dst: [2, 0, 0, 0, 0, 1], src: CANARY, tags: Vec::new() };
    let mut canary = || link.wrap(&canary.send(64, 0).bytes());
    let (first, last) = (canary(), canary());
    near.send([0; 10], &PRIMER)?;
    near.send([0; 10], &first)?;
    for frame in &case.frames {
        near.send([0; 10], &frame.bytes)?;
    }
    near.send([0; 10], &last)
}

/// A received frame as the conformance list has it: with its tag, and what the virtio-net header says of it.
fn out(received: Received) -> Out {
    let Received { vnet, mut frame, tag } = received;
    if let Some((tpid, tci)) = tag {
        let bytes = [tpid.to_be_bytes(), tci.to_be_bytes()].concat();
        frame.splice(12..12, bytes);
    }
    let Some(vnet) = vnet else {
        return Out { bytes: frame, gso: Some(Gso { kind: GsoKind::Untold, size: 0, has_cwr: false }) };
    };
    let size = usize::from(u16::from_ne_bytes([vnet[4], vnet[5]]));
    // 0x80 is the ECN bit: CWR on the first segment.
    let kind = match vnet[1] & !0x80 {
        1 => Some(GsoKind::Tcp4),
        4 => Some(GsoKind::Tcp6),
        5 => Some(GsoKind::Udp),
        _ => None,
    };
    Out { bytes: frame, gso: kind.map(|kind| Gso { kind, size, has_cwr: vnet[1] & 0x80 != 0 }) }
}

/// Runs a short program.
fn run(words: &[&str]) -> Result<(), String> {
    let output = Command::new(words[0]).args(&words[1..]).output().map_err(|error| format!("{}: {error}", words[0]))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
