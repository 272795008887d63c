use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use segue::gso::Frames;
use segue::hash::Key;
use segue::packet::{Frag, Packet, Start, Tunnels};
use segue::reason::Reason;
use segue::time::Nanos;
use segue_datapath::forward::DropReason;
use segue_datapath::icmp::{self, ErrorKind, ErrorLimits};
use segue_datapath::nat::{Config, Done, Nat, Protocol};
use segue_testkit::oracle::{self, Ports, verify};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that an empty translator with small tables may hold.
const FREE: usize = 256 << 10;
const SECOND: u64 = 1_000_000_000;
const OUTSIDE: [u8; 4] = [198, 19, 9, 9];
/// Largest number of entries of each table.
const MOST: usize = 24;
const MOST_PER_HOST: usize = 8;
/// Largest number of packets of one input.
const PACKETS: usize = 200;

/// Returns the next packet of the input, which has its length, two bytes, in front of it. A length with the highest bit
/// set stands for the packet `before` with a change: the next byte of the input is an offset, and the bytes behind it
/// replace those of the packet from there.
fn next(input: &mut Input<'_>, before: &[u8]) -> Vec<u8> {
    let len = input.u16();
    if len & 0x8000 == 0 {
        return input.take(usize::from(len)).to_vec();
    }
    let mut bytes = before.to_vec();
    let at = usize::from(input.u8());
    for (place, change) in bytes.iter_mut().skip(at).zip(input.take(usize::from(len & 0x3f))) {
        *place = *change;
    }
    bytes
}

fn load(bytes: &[u8]) -> Box<Packet<Vec<u8>>> {
    let mut packet = Box::<Packet<Vec<u8>>>::default();
    packet.load(Frag::all(bytes.to_vec()), Start::Ip, &Tunnels::NONE);
    packet
}

fn image(packet: &Packet<Vec<u8>>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    bytes.extend(packet.payload.pieces(0..usize::MAX).flatten());
    bytes
}

/// Returns whether lengths and checksums of a packet are right.
fn is_right(bytes: &[u8]) -> bool {
    verify(bytes, oracle::Start::Ip, &Ports::default()).is_ok()
}

/// Translates arbitrary packets of both sides at arbitrary times. A refused packet is unchanged; one that was right
/// stays right and one that was wrong stays wrong, and keeps its length; a packet that leaves has the outside address;
/// no two mappings share an outside port; and neither the tables nor the share of one host outgrow their limits.
///
/// Before each packet a byte says from which side it comes (bit 0), and how much time has passed.
pub fn nat(data: &[u8]) {
    bounded(data.len(), FREE, || {
        let config = Config { most: MOST, most_per_host: MOST_PER_HOST, ..Config::new(Ipv4Addr::from(OUTSIDE), 77) };
        let mut nat = Nat::new(config);
        nat.forward(Protocol::Tcp, 8080, (Ipv4Addr::new(198, 18, 0, 1), 80)).expect("an empty table");
        let mut input = Input::new(data);
        let (mut now, mut before) = (0, Vec::new());
        for _ in 0..PACKETS {
            if input.is_empty() {
                break;
            }
            let how = input.u8();
            now += [0, 1, SECOND, 61 * SECOND, 241 * SECOND, 301 * SECOND, 7441 * SECOND, SECOND / 1000]
                [usize::from(how >> 5)];
            let bytes = next(&mut input, &before);
            step(&mut nat, how & 1 == 0, &bytes, Nanos(now));
            before = bytes;
        }
        // The limits may be changed at any time; whatever was mapped before may stay.
        let (count, dropped) = (nat.len(), nat.early_drops());
        assert!(!nat.is_empty() && nat.mappings(Nanos(now)).count() <= count);
        nat.limit(1, 1);
        step(&mut nat, true, &before, Nanos(now));
        assert!(nat.len() <= count + 1 && nat.early_drops() >= dropped);
    });
}

fn step(nat: &mut Nat, is_outbound: bool, bytes: &[u8], now: Nanos) {
    let mut packet = load(bytes);
    let came = image(&packet);
    let mut copy = |bytes: &[u8]| Some(bytes.to_vec());
    let done =
        if is_outbound { nat.outbound(&mut packet, now, &mut copy) } else { nat.inbound(&mut packet, now, &mut copy) };
    let left = image(&packet);
    match done {
        Ok(Done::Translated | Done::Hairpin) => {
            assert_eq!(left.len(), came.len());
            let (was_right, how) = if is_right(&came) { (true, "wrong") } else { (false, "right") };
            // The sum of nothing but zeros is the other zero, which an update cannot tell (RFC 1624, section 3).
            let is_zero = came[usize::from(came[0] & 15) * 4..].iter().all(|byte| *byte == 0);
            assert!(is_right(&left) == was_right || is_zero, "a packet became a {how} one: {came:02x?} {left:02x?}");
            if done == Ok(Done::Translated) && is_outbound {
                assert_eq!(left[12..16], OUTSIDE);
            }
        }
        Ok(Done::Untouched | Done::FirstMissing) | Err(_) => assert_eq!(left, came, "{done:?}"),
    }
    nat.expire(now);
    let (mut places, mut all) = (BTreeSet::new(), 0);
    let mut hosts = std::collections::BTreeMap::<_, usize>::new();
    for mapping in nat.mappings(now) {
        assert!(places.insert((format!("{:?}", mapping.protocol), mapping.outside)), "one port, two mappings");
        *hosts.entry(mapping.inside.0).or_default() += 1;
        all += 1;
    }
    assert!(all <= MOST + 1, "{all} mappings");
    assert!(hosts.values().all(|count| *count <= MOST_PER_HOST + 1), "{hosts:?}");
}

/// Reports arbitrary dropped packets to their senders, like a router: each output is a valid packet to the sender, no
/// longer than the minimum MTU allows, quotes the packet's beginning, and is never about an ICMP error. One sender gets
/// no more of them at once than the limit of their kind.
pub fn icmp_error(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let reason = DropReason::ALL[usize::from(how >> 1) % DropReason::ALL.len()];
    let mtu = u32::from(input.u16());
    let bytes = input.rest();
    bounded(data.len(), FREE, || {
        let packet = load(bytes);
        let (v4, v6) = (Ipv4Addr::new(198, 18, 0, 254).into(), "2001:db8::fe".parse().expect("an address"));
        let mut scratch = Frames::default();
        let kind = icmp::kind_of(&packet, reason);
        if let Some(kind) = kind {
            let most = if kind == ErrorKind::TooBig { 100 } else { 50 };
            for sender in [v4, v6] {
                let mut limits = ErrorLimits::new(Key([1, 2]), Nanos(0));
                for second in 0..2 {
                    let sent = (0..2 * most).filter(|_| limits.take(kind, sender, Nanos(second * SECOND))).count();
                    assert_eq!(sent, most, "{kind:?}");
                }
            }
        }
        for from in [v4, v6] {
            let Some(error) = icmp::error(&packet, reason, mtu, from, &mut scratch) else { continue };
            assert!(kind.is_some(), "an error of a kind that has no limit");
            assert!(is_right(&error), "{error:02x?}");
            let is_v4 = error[0] >> 4 == 4;
            assert!(error.len() <= if is_v4 { 576 } else { 1280 });
            let (to, sender) = if is_v4 { (&error[16..20], &bytes[12..16]) } else { (&error[24..40], &bytes[8..24]) };
            assert_eq!(to, sender);
            let again = load(&error);
            assert!(icmp::error(&again, reason, mtu, from, &mut scratch).is_none(), "an error about an error");
        }
    });
}
