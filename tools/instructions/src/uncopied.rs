//! Segmentation of a train whose payload is not copied, in a tunnel with remote checksum offload or without: only the
//! sum reads the payload.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use segue::encap::{Carrier, Config, Encapsulator, Mode};
use segue::gso::{Arena, Limits, request_checksum, split};
use segue::packet::{Frag, Gso, GsoKind, Packet, Start, TrainCsum, Tunnels, Unit};

use crate::Workload;
use crate::engine::{Bytes, FULL, SEGMENTS};
use crate::frames::Flow;

/// Number of measured segmentations, of which the median is printed.
const TIMES: usize = 101;
/// Number of segmentations from cold memory: the caches are emptied before each.
const TIMES_COLD: usize = 15;
/// 64-bit words of the memory that empties the caches.
const CACHES: usize = 12 << 20;

/// A train of TCP in GUE that is segmented into headers and references to the payload, for a port that computes the
/// outer UDP checksum.
pub struct Uncopied {
    /// The name of the workload.
    name: &'static str,
    /// Train to send, and a copy of it in other memory.
    trains: [Packet<Bytes>; 2],
    arena: Arena,
}

impl Uncopied {
    /// Creates the train, with remote checksum offload if `remcsum`.
    pub fn new(remcsum: bool) -> Uncopied {
        let name = match remcsum {
            true => "GSO, scattered, in GUE, checksums left to the far end",
            false => "GSO, scattered, in GUE, checksums computed",
        };
        Uncopied { name, trains: [train(remcsum), train(remcsum)], arena: Arena::new() }
    }

    /// Cuts the train, or its copy. Returns the payload bytes that were read.
    fn cut(&mut self, is_copy: bool) -> u64 {
        self.arena.clear();
        let limits = Limits { outer_csum: true, ..Limits::NONE };
        let train = black_box(&self.trains[usize::from(is_copy)]);
        let made = split(train, &limits, &mut self.arena).expect("a train can be cut");
        assert_eq!(black_box(made), SEGMENTS);
        self.arena.take_checksummed()
    }

    /// Returns the segmentation as a workload.
    pub fn workload(mut self) -> Workload {
        Workload { name: self.name, packets: SEGMENTS, run: Box::new(move || _ = black_box(self.cut(false))) }
    }
}

/// Returns a train of full segments in GUE.
fn train(remcsum: bool) -> Packet<Bytes> {
    let mut packet = Packet::default();
    let bytes: Bytes = Flow::new(1).packet(SEGMENTS * FULL, 0).leak();
    packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
    packet.offload.unit =
        Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind: GsoKind::Tcp, size: FULL as u16, fixed_ids: 0 } };
    request_checksum(&mut packet).expect("a train of TCP");
    let [local, remote] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(198, 18, 1, last)));
    let config = Config::new(Mode::Ipip, Carrier::Gue { remcsum }, local, remote);
    let mut tunnel = Encapsulator::new(config).expect("the configuration is valid");
    tunnel.push(&mut packet).expect("the tunnel takes IPv4");
    packet
}

/// Prints, for each implementation of the sums, from warm and from cold memory, with the option and without, a line:
/// nanoseconds per segment (median), and payload bytes read for a segment.
pub fn print() {
    let mut caches = vec![1_u64; CACHES];
    let mut cuts = [false, true].map(Uncopied::new);
    for implementation in segue::checksum::implementations() {
        implementation.choose();
        for is_cold in [false, true] {
            for cut in &mut cuts {
                let mut read = 0;
                let time = |_| {
                    if is_cold {
                        caches.iter_mut().step_by(8).for_each(|word| *word = word.wrapping_add(1));
                        black_box(&caches);
                        // Code and memory of the engine are warm, as they are in a tunnel at work.
                        cut.cut(true);
                    }
                    let begin = Instant::now();
                    read = cut.cut(false);
                    begin.elapsed().as_nanos() as f64 / SEGMENTS as f64
                };
                let mut times: Vec<f64> = (0..if is_cold { TIMES_COLD } else { TIMES }).map(time).collect();
                times.sort_by(f64::total_cmp);
                let (nanos, bytes) = (times[times.len() / 2], read as f64 / SEGMENTS as f64);
                let memory = if is_cold { "cold" } else { "warm" };
                println!("{} {memory} {nanos:.2} {bytes:.0} {}", implementation.name(), cut.name);
            }
        }
    }
}
