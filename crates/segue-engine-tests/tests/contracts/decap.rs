//! The contract of decapsulation for any datagram: errors outside are refused, errors inside stay errors.

use std::net::IpAddr;

use segue::encap::{Carrier, Config, Decapsulator, GreOptions, Mode, OuterCsum, Received};
use segue::packet::{Csum, Frag, Packet, Pool, Tunnels, Unit};
use segue_testkit::oracle::{self, Ports, verify};
use segue_testkit::strategy::{GENEVE_PORT, VXLAN_PORT};
use segue_testkit::sum;

use crate::properties::cut;
use crate::streams;

/// Decapsulates a datagram, and returns whether it was accepted.
///
/// # Errors
/// A description of what is wrong with the decapsulated packet.
pub(crate) fn pull(decap: &mut Decapsulator, datagram: &[u8]) -> Result<bool, String> {
    by_fast_path(decap, datagram)?;
    let mut inside = Packet::default();
    if decap.pull_packet(Frag::all(datagram.to_vec()), &mut inside).is_err() {
        return if inside.is_empty() { Ok(false) } else { Err("a refused packet leaves something behind".into()) };
    }
    let is_frame = decap.config().mode.is_ethernet();
    let start = if is_frame { oracle::Start::Ethernet } else { oracle::Start::Ip };
    let is_bare = decap.config().carrier == Carrier::Bare;
    let udp = if datagram[0] >> 4 == 4 { usize::from(datagram[0] & 15) * 4 } else { 40 + extensions(datagram) };
    let addresses = if datagram[0] >> 4 == 4 { 12..20 } else { 8..40 };
    let (src, dst) = datagram[addresses.clone()].split_at(addresses.len() / 2);
    let has_checksum = !is_bare && datagram[udp + 6..udp + 8] != [0, 0];
    let end = if is_bare { udp } else { udp + usize::from(u16::from_be_bytes([datagram[udp + 4], datagram[udp + 5]])) };
    if has_checksum && sum::with_pseudo(src, dst, 17, &datagram[udp..end]) != 0xffff {
        return Err("a wrong outer checksum was accepted".into());
    }
    let is_remote = inside.offload.unit == Unit::Whole(Csum::Partial);
    if is_remote && !has_checksum {
        return Err("a remote checksum without an outer one was accepted".into());
    }
    let packets = cut(&inside).map_err(|violation| violation.what)?;
    let [packet] = &packets[..] else { return Err("more than one packet".into()) };
    if is_remote {
        // The remote end left the checksum to the receiver, and under the outer checksum it is completed correctly.
        return match verify(packet, start, &Ports::default()) {
            Err(what) if what.starts_with("transport checksum") => Err(what),
            _ => Ok(true),
        };
    }
    // Everything after the inner IP header is unchanged: errors are kept, and none is added.
    let header = if is_frame {
        // Ethernet, two tags, and an IP header whose ECN may have changed.
        62
    } else if packet[0] >> 4 == 4 {
        usize::from(packet[0] & 15) * 4
    } else {
        40
    };
    let rest = &packet[header.min(packet.len())..];
    match rest.is_empty() || datagram.windows(rest.len()).any(|window| window == rest) {
        true => Ok(true),
        false => Err(format!("other bytes come out: {packet:02x?}")),
    }
}

/// Decapsulates the part after a packet's outer headers by the fast path too, with each state of the outer checksum
/// that a port may report, and returns the number of successes.
///
/// # Errors
/// A description of how the fast path differs from the slow path.
pub(crate) fn by_fast_path(decap: &Decapsulator, packet: &[u8]) -> Result<usize, String> {
    let ip = match packet.first().map_or(0, |first| first >> 4) {
        4 => usize::from(packet[0] & 15) * 4,
        _ => 40,
    };
    let at = ip + if decap.config().carrier == Carrier::Bare { 0 } else { 8 };
    let (Some(datagram), Some(tos)) = (packet.get(at..), packet.get(1)) else { return Ok(0) };
    let mut short = 0;
    // As in a daemon, whose own kernel may send to it what it has not finished.
    let unfinished = Config { unfinished: Some(1400), ..*decap.config() };
    let decaps = [decap.clone(), Decapsulator::new(unfinished).map_err(|error| format!("{error:?}"))?];
    for (csum, decap) in [OuterCsum::Verified, OuterCsum::Absent, OuterCsum::Unknown]
        .into_iter()
        .flat_map(|csum| decaps.iter().map(move |decap| (csum, decap)))
    {
        let meta = Received { tos: *tos, csum, sum: None };
        let datagram = Frag::all(datagram.to_vec());
        let Ok(frame) = decap.pull_frame(datagram.clone(), &meta) else { continue };
        short += 1;
        let mut inside = Packet::default();
        if let Err(why) = decap.clone().pull(datagram, &meta, &mut inside) {
            return Err(format!("the fast path takes what is refused: {why:?}"));
        }
        let came = frame.parse(&Tunnels::NONE, &mut Pool::new(0));
        let image = |packet: &Packet<Vec<u8>>| {
            let payload: Vec<u8> = packet.payload.pieces(0..usize::MAX).flatten().copied().collect();
            let end = (packet.layout.end(), packet.layout.is_exact());
            format!("{:02x?} {payload:02x?} {:?} {end:?} {:?}", packet.head.bytes(), packet.layout, packet.offload)
        };
        if image(&came) != image(&inside) {
            return Err(format!("the fast path gives\n{}\nnot\n{}", image(&came), image(&inside)));
        }
    }
    Ok(short)
}

fn extensions(datagram: &[u8]) -> usize {
    let (mut next, mut len) = (datagram[6], 0);
    while matches!(next, 0 | 43 | 60) {
        next = datagram[40 + len];
        len += 8 + usize::from(datagram[40 + len + 1]) * 8;
    }
    len
}

/// Returns receivers for tunnels of each kind on the ports of the streams.
pub(crate) fn decapsulators() -> Vec<Decapsulator> {
    let gre = |key: Option<u32>, csum| Mode::Gre(GreOptions { ikey: key, icsum: csum, ..GreOptions::default() });
    let addresses: [(IpAddr, IpAddr); 2] = [
        ("198.18.0.2".parse().unwrap(), "198.18.0.1".parse().unwrap()),
        ("2001:db8:0:0::2".parse().unwrap(), "2001:db8:0:0::1".parse().unwrap()),
    ];
    let kinds = [
        (Mode::Ip, Carrier::Gue { remcsum: true }, streams::GUE),
        (gre(None, false), Carrier::Gue { remcsum: true }, streams::GUE),
        (gre(Some(42), true), Carrier::Gue { remcsum: true }, streams::GUE),
        (Mode::Ip, Carrier::Fou, streams::FOU[0].0),
        (Mode::Ip, Carrier::Fou, streams::FOU[1].0),
        (gre(None, false), Carrier::Fou, streams::FOU[2].0),
        (gre(Some(42), true), Carrier::Fou, streams::FOU[2].0),
        (Mode::Ip, Carrier::Bare, 0),
        (gre(None, false), Carrier::Bare, 0),
        (gre(Some(42), true), Carrier::Bare, 0),
        (Mode::GreTap(GreOptions::default()), Carrier::Bare, 0),
        (Mode::GreTap(GreOptions::default()), Carrier::Gue { remcsum: true }, streams::GUE),
        (Mode::Ethernet, Carrier::Fou, streams::FOU[3].0),
        (Mode::Ethernet, Carrier::Vxlan { vni: 5, remcsum: true, takes_remcsum: true }, VXLAN_PORT),
        (Mode::Ethernet, Carrier::Vxlan { vni: 1, remcsum: false, takes_remcsum: true }, VXLAN_PORT),
        (Mode::Ethernet, Carrier::Geneve { vni: 5 }, GENEVE_PORT),
        (Mode::Ethernet, Carrier::Geneve { vni: 1 }, GENEVE_PORT),
    ];
    let all = addresses.into_iter().flat_map(|(local, remote)| {
        kinds.map(|(mode, carrier, port)| {
            let port = if port == 0 { 9 } else { port };
            let config = Config { port, ..Config::new(mode, carrier, local, remote) };
            Decapsulator::new(config).expect("a tunnel")
        })
    });
    all.collect()
}
