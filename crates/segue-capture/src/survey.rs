//! Survey: the content of a capture, the packets that would merge, and the reasons for the others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Read;
use std::mem::discriminant;
use std::net::SocketAddr;
use std::rc::Rc;

use segue::gro::Profile;
use segue::packet::{Kind, Stop, Tunnels};

use crate::checksums::{Finding, Verdict};
use crate::error::CaptureError;
use crate::file::{Block, BlockKind, Format, Item, ReadError, Reader, Record};
use crate::frame::{Frame, USUAL_MTU};
use crate::lanes::{GroCounts, Lanes, MergeRules};
use crate::stream::each_item;

/// Maximum number of flows counted separately; the packets of all further ones are counted together.
const MOST_FLOWS: usize = 100_000;
/// Maximum number of interfaces kept in the survey.
const MOST_INTERFACES: usize = 1000;
/// Upper bounds of the size classes, in bytes of the frame; the last class has none.
pub const SIZES: [u32; 8] = [64, 128, 256, 512, 1024, 1514, 9014, u32::MAX];

/// Configuration of [`survey`].
#[derive(Clone, Debug)]
pub struct SurveyConfig {
    /// UDP ports that carry tunnels.
    pub tunnels: Tunnels,
    /// The rules by which mergeable packets are counted.
    pub rules: MergeRules,
}

impl Default for SurveyConfig {
    /// Returns the default: no tunnel on a UDP port, and default rules.
    fn default() -> SurveyConfig {
        SurveyConfig { tunnels: Tunnels::NONE, rules: MergeRules::default() }
    }
}

/// One direction of a TCP or UDP connection, by its innermost addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Whether the flow is TCP; otherwise it is UDP.
    pub is_tcp: bool,
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// Number of packets of the flow.
    pub packets: u64,
    /// Original length of the flow's packets in bytes.
    pub bytes: u64,
    /// Number of packets of more than 1500 bytes of IP.
    pub trains: u64,
}

/// The protocol and the two ends of the flow: `TCP 198.18.0.1:5001 -> 198.18.0.2:41416`.
impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", if self.is_tcp { "TCP" } else { "UDP" }, self.source, self.destination)
    }
}

/// Counters of [`survey`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Survey {
    /// Format of the capture file.
    pub format: Format,
    /// Number of packets read.
    pub packets: u64,
    /// Original length of all packets in bytes.
    pub bytes: u64,
    /// Nanoseconds between the earliest and the latest timestamp.
    pub duration_ns: u64,
    /// Number of packets of which bytes are missing.
    pub cut: u64,
    /// Number of records that hold no IP packet.
    pub not_ip: u64,
    /// Number of IP fragments.
    pub fragments: u64,
    /// Number of TCP and UDP packets of more than 1500 bytes of IP.
    pub trains: u64,
    /// Packets by size class: [`SIZES`].
    pub sizes: [u64; SIZES.len()],
    /// Numbers of packets by the name of their verdict, without packets truncated in the capture.
    pub checksums: BTreeMap<&'static str, u64>,
    /// Packets by their outermost tunnel.
    pub encap: BTreeMap<&'static str, u64>,
    /// Number of packets with a checksum that a remote checksum option leaves to the receiver.
    pub remote_checksums: u64,
    /// Flows, in arbitrary order.
    pub flows: Vec<Flow>,
    /// Number of packets of flows beyond the first 100,000.
    pub packets_of_further_flows: u64,
    /// Link type and name of each interface, the first 1000 of them; the name is empty where none is known.
    pub interfaces: Vec<(u16, String)>,
    /// Numbers of packets that would remain by profile: the one of [`SurveyConfig::rules`] first, then strict and
    /// linux.
    pub would_leave: Vec<(Profile, u64)>,
    /// Counters of GRO with the profile of [`SurveyConfig::rules`].
    pub gro: GroCounts,
    /// The position at which the input is truncated or damaged; all packets before it were counted.
    pub fault: Option<ReadError>,
}

impl Survey {
    /// Returns the flows with most bytes, largest first: at most `most` of them.
    pub fn largest_flows(&self, most: usize) -> Vec<&Flow> {
        let mut flows: Vec<&Flow> = self.flows.iter().collect();
        flows.sort_by_cached_key(|flow| (Reverse(flow.bytes), flow.to_string()));
        flows.truncate(most);
        flows
    }
}

/// Counts the packets of a capture, and merges them in memory by several profiles to count the remaining ones.
///
/// # Errors
/// [`CaptureError::Read`].
pub fn survey<R: Read>(reader: &mut Reader<R>, config: &SurveyConfig) -> Result<Survey, CaptureError> {
    let gro = config.rules.gro();
    let mut profiles = vec![gro.profile];
    let always = [Profile::Strict, Profile::linux()].into_iter();
    profiles.extend(always.filter(|profile| discriminant(profile) != discriminant(&gro.profile)));
    let table = |profile: &Profile| Trial {
        lanes: Lanes::new(segue::gro::Config { profile: *profile, ..gro }, config.tunnels),
        left: 0,
    };
    let mut trials: Vec<Trial> = profiles.iter().map(table).collect();
    let mut counting = Counting::new(reader.format());
    if reader.pcap_header().is_some() {
        counting.survey.interfaces.push((reader.interfaces()[0].link, String::new()));
    }
    let fault = each_item(reader, |item| {
        match item {
            Item::Packet(record) => {
                let frame = Frame::open(record.link, record.data(), &config.tunnels, USUAL_MTU);
                counting.packet(&record, frame.filter(|frame| frame.is_ip() || frame.is_malformed()).as_ref());
                let raw: Rc<[u8]> = record.raw.into();
                trials.iter_mut().for_each(|trial| trial.packet(&record, &raw));
            }
            Item::Block(block) => {
                counting.block(&block);
                if block.kind == BlockKind::Section {
                    trials.iter_mut().for_each(|trial| trial.lanes.forget(|_| trial.left += 1));
                }
            }
        }
        Ok(())
    })?;
    trials.iter_mut().for_each(|trial| trial.lanes.flush(|_| trial.left += 1));
    let Counting { survey, first, last, flows, .. } = counting;
    Ok(Survey {
        duration_ns: first.map_or(0, |first| last - first),
        flows: flows.into_values().collect(),
        would_leave: profiles.into_iter().zip(&trials).map(|(profile, trial)| (profile, trial.left)).collect(),
        gro: trials[0].lanes.tally(),
        fault,
        ..survey
    })
}

/// A merge in memory that only counts the remaining packets.
struct Trial {
    lanes: Lanes,
    left: u64,
}

impl Trial {
    fn packet(&mut self, record: &Record<'_>, raw: &Rc<[u8]>) {
        let mut done = Vec::new();
        let taken = self.lanes.push(record, raw, record.number, |out| done.push(out));
        if self.lanes.is_full() {
            self.lanes.flush(|out| done.push(out));
        }
        self.left += done.len() as u64 + u64::from(taken.is_err());
        done.into_iter().for_each(|out| self.lanes.give_back(out.packet));
    }
}

/// Identity of a flow: whether it is TCP, its source and destination.
type FlowKey = (bool, SocketAddr, SocketAddr);

struct Counting {
    survey: Survey,
    first: Option<u64>,
    last: u64,
    flows: HashMap<FlowKey, Flow>,
    findings: Vec<Finding>,
}

impl Counting {
    fn new(format: Format) -> Counting {
        let survey = Survey {
            format,
            packets: 0,
            bytes: 0,
            duration_ns: 0,
            cut: 0,
            not_ip: 0,
            fragments: 0,
            trains: 0,
            sizes: [0; SIZES.len()],
            checksums: BTreeMap::new(),
            encap: BTreeMap::new(),
            remote_checksums: 0,
            flows: Vec::new(),
            packets_of_further_flows: 0,
            interfaces: Vec::new(),
            would_leave: Vec::new(),
            gro: GroCounts::default(),
            fault: None,
        };
        Counting { survey, first: None, last: 0, flows: HashMap::new(), findings: Vec::new() }
    }

    fn block(&mut self, block: &Block<'_>) {
        let interfaces = &mut self.survey.interfaces;
        if let Some(interface) = block.interface.filter(|_| interfaces.len() < MOST_INTERFACES) {
            interfaces.push((interface.link, interface.name.clone().unwrap_or_default()));
        }
    }

    fn packet(&mut self, record: &Record<'_>, frame: Option<&Frame<'_>>) {
        let survey = &mut self.survey;
        survey.packets += 1;
        survey.bytes += u64::from(record.len);
        survey.cut += u64::from(record.is_cut());
        if let Some(nanos) = record.nanos {
            self.first = Some(self.first.unwrap_or(nanos).min(nanos));
            self.last = self.last.max(nanos);
        }
        let class = SIZES.iter().position(|size| record.len <= *size).unwrap_or(SIZES.len() - 1);
        survey.sizes[class] += 1;
        let Some(frame) = frame else {
            survey.not_ip += 1;
            return;
        };
        survey.fragments += u64::from(frame.layout.stop() == Stop::Fragment);
        let is_train = frame.ip_len() > USUAL_MTU && frame.layout.transport().is_some();
        survey.trains += u64::from(is_train);
        if frame.is_ip() {
            *survey.encap.entry(encap(frame)).or_default() += 1;
        }
        if !record.is_cut() {
            frame.judge(&mut self.findings);
            survey.remote_checksums += u64::from(self.findings.iter().any(|f| f.verdict == Verdict::Remote));
            *survey.checksums.entry(frame.verdict(&self.findings).name()).or_default() += 1;
        }
        self.flow(record, frame, is_train);
    }

    fn flow(&mut self, record: &Record<'_>, frame: &Frame<'_>, is_train: bool) {
        let (Some(ip), Some(transport)) = (frame.layout.inner_ip(), frame.layout.transport()) else { return };
        let Some((source, destination)) = frame.addresses(ip) else { return };
        let Some(ports) = frame.bytes.get(transport.start()..).and_then(|bytes| bytes.first_chunk::<4>()) else {
            return;
        };
        let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
        let is_tcp = transport.kind == Kind::Tcp;
        let (source, destination) = (SocketAddr::new(source, port(0)), SocketAddr::new(destination, port(2)));
        let key = (is_tcp, source, destination);
        if !self.flows.contains_key(&key) && self.flows.len() == MOST_FLOWS {
            self.survey.packets_of_further_flows += 1;
            return;
        }
        let new = Flow { is_tcp, source, destination, packets: 0, bytes: 0, trains: 0 };
        let flow = self.flows.entry(key).or_insert(new);
        flow.packets += 1;
        flow.bytes += u64::from(record.len);
        flow.trains += u64::from(is_train);
    }
}

/// Returns the name of the outermost tunnel of a packet.
fn encap(frame: &Frame<'_>) -> &'static str {
    if frame.layout.ip_levels() < 2 {
        return "plain";
    }
    let mut inside = frame.layout.inside_outer_ip().iter().map(|header| header.kind);
    match inside.next() {
        Some(Kind::Udp) => match inside.next() {
            Some(Kind::Gue) => "gue",
            Some(Kind::Vxlan) => "vxlan",
            Some(Kind::Geneve) => "geneve",
            _ => "fou",
        },
        Some(Kind::Gre) => "gre",
        _ => "ip",
    }
}
