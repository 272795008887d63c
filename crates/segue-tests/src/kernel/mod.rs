//! The GRO, GSO and IP fragmentation of the running kernel, on this machine or in the guest, as the reference for
//! comparisons.
//!
//! A [`Gro`] is a number of veth pairs in the network namespace of the process. Frames go into one end by a packet
//! socket, and what the other end's GRO makes of them is read by another. The receiving end polls once, some
//! milliseconds after it has noticed the first frame (`napi_defer_hard_irqs` and `gro_flush_timeout`), so that a whole
//! case is one poll. Whether it was one is known: the first and the last frame of a burst are of a flow of their own,
//! and join only then. What was joined then leaves by a device that can do nothing, so that the kernel cuts it again.
//!
//! A [`Gso`] hands trains to such a device after a virtio-net header, with a tunnel put around them if wanted; an
//! [`Underlay`] carries the kernel's own tunnel devices, which are handed trains. A [`Stack`] has the kernel's IP send,
//! forward and put together datagrams that are longer than an MTU.

mod bpf;
mod command;
mod frame;
mod gso;
mod stack;
mod sys;
mod underlay;

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use command::{batch, run};
use frame::{PRIMER, tagged};
use segue_testkit::build::{Ethernet, Ip, V4};
use segue_testkit::conformance::{
    self, Case, FOU_PORTS, FOU6_PORTS, Feature, GENEVE_PORT, GUE_PORT, GsoKind, Out, VXLAN_PORT, VXLAN_REMOTE_PORT,
    Vector,
};
use segue_testkit::flow::Sender;
use sys::{Received, Role, Socket};

pub use gso::{Gso, what_differs};
pub use stack::Stack;
pub use underlay::{Entry, Underlay};

/// Maximum number of times that a burst is resent because it was not received in one poll.
const TRIES: usize = 50;
/// Maximum number of times that a burst is sent again because some of its frames were not sent.
const LOSSES: usize = 2;
/// Time without a frame after which no more are expected.
const QUIET: Duration = Duration::from_millis(10);
/// Source address of the frames that show whether a burst was one poll.
const CANARY: [u8; 6] = [2, 0, 0, 0, 0, 0xca];

/// Time between two polls of the receiving end.
#[derive(Clone, Copy, Debug)]
pub struct PollInterval(pub Duration);

/// A set of veth pairs with GRO, each followed by a pair without any offload, which sends the output of GRO.
#[derive(Debug)]
pub struct Gro {
    lanes: Vec<Lane>,
    interval: Duration,
}

/// A path through two veth pairs: `g` sends to `h`, whose GRO joins; frames received by `h` leave by `k`, which
/// segments, to `l`.
#[derive(Debug)]
struct Lane {
    near: Socket,
    joined: FrameReceiver,
    /// Socket that sends out of `k` too.
    out: Socket,
    split: Socket,
}

/// The output of a kernel for a case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Packets and trains that GRO has output.
    pub trains: Vec<Out>,
    /// Frames into which GSO has split `trains`.
    pub frames: Vec<Vec<u8>>,
}

/// A packet socket that receives all frames that a device receives.
///
/// Linux before 6.2 has no word for a UDP train in a virtio-net header, and refuses to hand it out with one, so there
/// is a second socket for the bytes.
#[derive(Debug)]
struct FrameReceiver {
    told: Socket,
    bare: Socket,
}

impl FrameReceiver {
    fn new(device: &str) -> io::Result<FrameReceiver> {
        Ok(FrameReceiver {
            told: Socket::open(device, Role::Receives)?,
            bare: Socket::open(device, Role::ReceivesBare)?,
        })
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
    /// Creates `count` pairs in this network namespace, which must be fresh.
    ///
    /// # Errors
    /// A message that names the failed step and its reason.
    pub fn new(count: usize, interval: PollInterval) -> Result<Gro, String> {
        // What no test asked for is not to be sent.
        let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        let (mut links, mut filters) = (String::new(), String::new());
        for n in 0..count {
            links += &format!("link add g{n} mtu 9000 type veth peer name h{n} mtu 9000\n");
            links += &format!("link add k{n} mtu 9000 type veth peer name l{n} mtu 9000\n");
            for side in ["g", "h", "k", "l"] {
                links += &format!("link set {side}{n} up\n");
            }
            filters += &format!("qdisc add dev h{n} ingress\n");
            filters += &format!(
                "filter add dev h{n} parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev k{n}\n"
            );
        }
        batch("ip", &links)?;
        batch("tc", &filters)?;
        let mut lanes = Vec::new();
        for n in 0..count {
            let [near, joining, splitting, split] = ["g", "h", "k", "l"].map(|side| format!("{side}{n}"));
            // A sender that segments by itself is taken for a peer whose packets need no GRO.
            run(&["ethtool", "-K", &near, "tso", "off"])?;
            run(&["ethtool", "-K", &joining, "gro", "on", "rx-udp-gro-forwarding", "on"])?;
            let off = ["tx", "off", "tso", "off", "gso", "off", "tx-udp-segmentation", "off"];
            run(&[&["ethtool", "-K", &splitting][..], &off].concat())?;
            for (file, value) in
                [("napi_defer_hard_irqs", "1".to_string()), ("gro_flush_timeout", interval.0.as_nanos().to_string())]
            {
                let path = format!("/sys/class/net/{joining}/{file}");
                fs::write(&path, value).map_err(|error| format!("{path}: {error}"))?;
            }
            let open = |device: &str, role| Socket::open(device, role).map_err(|error| format!("{device}: {error}"));
            lanes.push(Lane {
                near: open(&near, Role::Sends)?,
                joined: FrameReceiver::new(&joining).map_err(|error| format!("{joining}: {error}"))?,
                out: open(&splitting, Role::Sends)?,
                split: open(&split, Role::ReceivesBare)?,
            });
        }
        Ok(Gro { lanes, interval: interval.0 })
    }

    /// Makes the interfaces and ports that the kernel needs to join the carriers of a feature.
    ///
    /// # Errors
    /// Returns what the kernel refused.
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

    /// Sends the frames of each case as one burst, and returns the output; `None` for a case that was never received in
    /// one poll.
    ///
    /// # Errors
    /// From the sockets.
    pub fn run(&self, cases: &[&Case]) -> io::Result<Vec<Option<Made>>> {
        let mut outcomes: Vec<Option<Made>> = vec![None; cases.len()];
        let mut losses = vec![0; cases.len()];
        for _ in 0..TRIES {
            let is_open = |&case: &usize| match &outcomes[case] {
                None => true,
                // A kernel may be unable to cut what it joined; once may be an accident.
                Some(made) => made.frames.len() < cases[case].frames.len() && losses[case] < LOSSES,
            };
            let open: Vec<usize> = (0..cases.len()).filter(is_open).collect();
            if open.is_empty() {
                break;
            }
            for some in open.chunks(self.lanes.len()) {
                for (&case, lane) in some.iter().zip(&self.lanes) {
                    while lane.joined.receive()?.is_some() {}
                    while lane.split.receive()?.is_some() {}
                    burst(&lane.near, cases[case])?;
                }
                for (&case, lane) in some.iter().zip(&self.lanes) {
                    if let Some(made) = self.gather(lane, cases[case])? {
                        losses[case] += 1;
                        outcomes[case] = Some(made);
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// Collects the output for a case, if the case was received in one poll.
    fn gather(&self, lane: &Lane, case: &Case) -> io::Result<Option<Made>> {
        let deadline = Instant::now() + self.interval * 4 + Duration::from_secs(1);
        let (mut made, mut canaries) = (Made::default(), Vec::new());
        while canaries.is_empty() || !case.is_complete(&made.trains) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Something is missing, or is none of the frames: the judge will say what, if it was one poll.
                break;
            }
            lane.joined.told.wait(left.max(Duration::from_millis(1)))?;
            while let Some(received) = lane.joined.receive()? {
                if is_from(&received, &PRIMER[6..12]) {
                    continue;
                }
                let is_canary = is_from(&received, &CANARY);
                if is_canary { &mut canaries } else { &mut made.trains }.push(out(received));
            }
        }
        // Both in one train: all between them was one poll.
        if canaries.len() != 1 || canaries[0].gso.is_none() {
            return Ok(None);
        }
        // What leaves does so at once.
        while made.frames.len() < case.frames.len() && lane.split.wait(QUIET)? {
            while let Some(received) = lane.split.receive()? {
                if !is_from(&received, &PRIMER[6..12]) && !is_from(&received, &CANARY) {
                    made.frames.push(tagged(received));
                }
            }
        }
        Ok(Some(made))
    }
}

/// Sends a train to be segmented for the device after the first pair, like [`Gso::cut`].
///
/// # Errors
/// From the sockets.
pub fn cut(gro: &Gro, vector: &Vector) -> io::Result<Option<Vec<Vec<u8>>>> {
    let Some(Lane { out, split, .. }) = gro.lanes.first() else { return Ok(None) };
    gso::cut(out, split, (gso::vnet_of(vector), &vector.frame), vector.segments.len())
}

fn is_from(received: &Received, source: &[u8]) -> bool {
    received.frame.get(6..12) == Some(source)
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

/// Converts a received frame to the form of the conformance list, with its VLAN tag and the fields of the virtio-net
/// header.
fn out(received: Received) -> Out {
    let vnet = received.vnet;
    let frame = tagged(received);
    let Some(vnet) = vnet else {
        return Out { bytes: frame, gso: Some(conformance::Gso { kind: GsoKind::Untold, size: 0, has_cwr: false }) };
    };
    let size = usize::from(u16::from_ne_bytes([vnet[4], vnet[5]]));
    // 0x80 is the ECN bit: CWR on the first segment.
    let kind = match vnet[1] & !0x80 {
        1 => Some(GsoKind::Tcp4),
        4 => Some(GsoKind::Tcp6),
        5 => Some(GsoKind::Udp),
        _ => None,
    };
    Out { bytes: frame, gso: kind.map(|kind| conformance::Gso { kind, size, has_cwr: vnet[1] & 0x80 != 0 }) }
}
