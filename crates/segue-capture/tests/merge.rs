//! Tests of merge on pure acknowledgments, and of its comments.

mod common;

use std::collections::BTreeSet;

use common::shapes::{Shape, capture, file, framed, shapes};
use common::{commented, form_of, merge, merging, ports, undo};
use segue::gro::{Generation, Profile};
use segue_capture::CaptureError;
use segue_capture::file::{Format, Order, Outgoing, PcapHeader, Reader, Writer, interface_block, link, section_block};
use segue_capture::merge::{MergeConfig, MergeRules};
use segue_testkit::Rng;
use segue_testkit::build::{Ip, L4, V4};
use segue_testkit::flow::{Sender, acknowledging};

fn with(profile: Profile, hold_us: u32) -> MergeRules {
    MergeRules { profile, hold_us, ..MergeRules::default() }
}

/// Builds a pure acknowledgment of `number` with this window.
fn ack(sender: &mut Sender, number: u32, window: u16) -> Vec<u8> {
    if let L4::Tcp(tcp) = &mut sender.next.l4 {
        (tcp.ack, tcp.window) = (number, window);
    }
    sender.send(0, 0).bytes()
}

#[test]
fn pure_acks_collapse_to_the_newest_at_its_own_place_and_what_a_sender_must_see_stays() {
    let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 1, 7, vec![]);
    let mut other = Sender::tcp(Ip::V4(V4::new(1, 3, 4)), 2, 7, vec![]);
    let mut sent = Vec::new();
    // The first of a flow stays, the next five become one, and with another flow's data between them.
    (1..=6).for_each(|n| sent.push(ack(&mut sender, n * 2896, 500)));
    sent.insert(4, other.send(100, 8).bytes());
    // Three duplicates and a window update.
    (0..3).for_each(|_| sent.push(ack(&mut sender, 6 * 2896, 500)));
    sent.push(ack(&mut sender, 6 * 2896, 700));
    // And on it goes: the first after them stays.
    (7..=9).for_each(|n| sent.push(ack(&mut sender, n * 2896, 700)));
    // On Ethernet, 30 microseconds at most between two frames.
    let mut rng = Rng::new(5);
    let frames: Vec<Vec<u8>> = sent.iter().map(|packet| framed(link::ETHERNET, packet, &mut rng)).collect();
    let shape = Shape { seed: 0, traffic: "", link: link::ETHERNET, form: "ng" };
    let input = capture(&shape, &frames, &mut rng);
    let config = MergeConfig { rules: with(Profile::Lro, 60_000_000), tunnels: ports(), explain: true };
    let (merged, report) = merge(&input, Format::Pcapng, &config).unwrap();
    assert_eq!((report.gro.swallowed, report.can_undo), (4 + 1, false), "{report:?}");
    let (before, after) = (commented(&input), commented(&merged));
    let kept = [
        (0, "segue: alone: ack first"),
        (4, "segue: alone: psh"),
        (6, "segue: stands for 5 ACKs, ended: order"),
        (7, "segue: alone: ack duplicate"),
        (8, "segue: alone: ack duplicate"),
        (9, "segue: alone: ack duplicate"),
        (10, "segue: alone: ack window"),
        (11, "segue: alone: ack first"),
        (13, "segue: stands for 2 ACKs, ended: poll end"),
    ];
    assert_eq!(after.len(), kept.len(), "{report:?}");
    for ((index, comment), (nanos, bytes, comments)) in kept.into_iter().zip(&after) {
        assert!(*bytes == frames[index] && *nanos == before[index].0, "packet {index}");
        assert_eq!(*comments, [comment], "packet {index}");
    }
    let refused = undo(&merged, Format::Pcapng).map(|(_, report)| report);
    assert!(matches!(refused, Err(CaptureError::Swallowed { packet: 3 })), "{refused:?}");
    // The other profiles swallow none, and theirs can be undone.
    for profile in [Profile::Strict, Profile::linux()] {
        let (merged, report) = merge(&input, Format::Pcapng, &merging(with(profile, 1000))).unwrap();
        assert_eq!((report.gro.swallowed, report.can_undo), (0, true));
        assert!(undo(&merged, Format::Pcapng).unwrap().0 == input);
    }
}

#[test]
fn the_snap_length_of_a_pcap_file_with_trains_is_not_below_their_length() {
    // Of pcapng, the first interface keeps 2000 bytes of a packet, and the second all.
    for form in ["us_le", "ng_many"] {
        let input = file(&Shape { seed: 3, traffic: "bulk", link: link::RAW, form });
        let (merged, _) = merge(&input, Format::Pcap, &merging(with(Profile::Strict, 100_000))).unwrap();
        let longest = commented(&merged).iter().map(|(_, bytes, _)| bytes.len()).max().unwrap();
        let snaplen = Reader::new(&merged[..]).unwrap().pcap_header().unwrap().0.snaplen as usize;
        assert!(longest > 20_000 && snaplen >= longest, "{form}: {snaplen} bytes are kept of {longest}");
    }
}

#[test]
fn the_hold_time_is_kept_after_a_time_stamp_far_ahead() {
    let head = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: 0, link: u32::from(link::RAW) };
    let start = [section_block(Order::NATIVE, &[]), interface_block(Order::NATIVE, &head.interface())].concat();
    // Eight segments of a connection, and how far apart they are, in microseconds; behind a packet of another one.
    for (apart, trains) in [(10_000, 0), (100, 1)] {
        for is_repeated in [false, true] {
            let mut writer = Writer::new(start.clone(), Format::Pcapng);
            let mut write = |micros: u64, data: &[u8]| {
                let len = data.len() as u32;
                let ticks = Some(1_700_000_000_000_000_000 + micros * 1000);
                writer.packet(&Outgoing { interface: 0, ticks, len, data: &[data], options: &[] }).unwrap();
            };
            write(3_600_000_000, &Sender::tcp(Ip::V4(V4::new(1, 3, 4)), 2, 7, vec![]).send(100, 0).bytes());
            let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 1, 7, vec![]);
            (0..8).for_each(|n| write(n * apart, &sender.send(1000, 0).bytes()));
            let mut file = writer.finish().unwrap();
            if is_repeated {
                // A section of its own.
                file.splice(0..0, file.clone());
            }
            let (merged, report) = merge(&file, Format::Pcapng, &merging(with(Profile::Strict, 1000))).unwrap();
            let sections = 1 + u64::from(is_repeated);
            assert_eq!(report.gro.trains, trains * sections, "{apart}: {report:?}");
            assert!(undo(&merged, Format::Pcapng).unwrap().0 == file, "{apart}");
        }
    }
}

#[test]
fn interfaces_whose_records_are_not_in_order_do_not_end_each_others_trains() {
    let head = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: 0, link: u32::from(link::RAW) };
    let interface = interface_block(Order::NATIVE, &head.interface());
    let start = [section_block(Order::NATIVE, &[]), interface.clone(), interface].concat();
    let mut writer = Writer::new(start, Format::Pcapng);
    let mut senders = [1, 2].map(|port| Sender::tcp(Ip::V4(V4::new(1, 1, 2)), port, 7, vec![]));
    // The first interface is 20 ms ahead.
    for n in 0..8 {
        for (interface, sender) in (0..).zip(&mut senders) {
            let data = sender.send(1000, 0).bytes();
            let ticks = Some(1_700_000_000_000_000_000 + 100_000 * n + 20_000_000 * (1 - u64::from(interface)));
            let len = data.len() as u32;
            writer.packet(&Outgoing { interface, ticks, len, data: &[&data], options: &[] }).unwrap();
        }
    }
    let file = writer.finish().unwrap();
    let (_, report) = merge(&file, Format::Pcapng, &merging(with(Profile::Strict, 1000))).unwrap();
    assert_eq!(report.gro.trains, 2, "{report:?}");
}

#[test]
fn with_profile_lro_every_packet_is_accounted_for_and_nothing_is_wrong() {
    let (mut swallowed, mut trains) = (0, 0);
    let mut rng = Rng::new(11);
    for shape in shapes(84) {
        let mut frames: Vec<Vec<u8>> = common::shapes::packets(shape.traffic, &mut rng);
        // With the other direction of connections among them.
        let acks: Vec<Vec<u8>> = acknowledging(&mut rng, 6, 300).into_iter().map(|sent| sent.bytes).collect();
        for (n, ack) in acks.into_iter().enumerate() {
            frames.insert((n * 3).min(frames.len()), ack);
        }
        let frames: Vec<Vec<u8>> = frames.iter().map(|packet| framed(shape.link, packet, &mut rng)).collect();
        let input = capture(&shape, &frames, &mut rng);
        let (merged, report) = merge(&input, Format::Pcapng, &merging(with(Profile::Lro, 100_000))).unwrap();
        let gro = &report.gro;
        let gone = gro.segments - (gro.trains - report.unwritten) + gro.swallowed;
        assert_eq!(report.packets_in - report.packets_out, gone, "{shape:?} {report:?}");
        assert_eq!(commented(&merged).len() as u64, report.packets_out, "{shape:?}");
        swallowed += gro.swallowed;
        trains += gro.trains;
        // Without acknowledgments, or with all of them kept, it can be undone.
        if gro.swallowed == 0 {
            assert!(undo(&merged, form_of(&input)).unwrap().0 == input, "{shape:?}");
        }
    }
    assert!(swallowed > 1000 && trains > 500, "{swallowed} swallowed, {trains} trains");
}

#[test]
fn explained_merges_have_a_reason_on_each_packet_and_are_undone_all_the_same() {
    let mut reasons = BTreeSet::new();
    for shape in shapes(42) {
        let input = file(&shape);
        for profile in [Profile::Strict, Profile::Linux(Generation::V6_12), Profile::Linux(Generation::V7)] {
            let config = MergeConfig { rules: with(profile, 100_000), tunnels: ports(), explain: true };
            let (merged, _) = merge(&input, Format::Pcapng, &config).unwrap();
            for (_, _, comments) in commented(&merged) {
                let ours: Vec<&String> = comments.iter().filter(|text| text.starts_with("segue: ")).collect();
                let [ours] = &ours[..] else { panic!("{shape:?}: {comments:?}") };
                let (_, reason) = ours.rsplit_once(": ").unwrap();
                assert!(!reason.is_empty(), "{shape:?}: {ours}");
                reasons.insert(reason.to_owned());
            }
            assert!(undo(&merged, form_of(&input)).unwrap().0 == input, "{shape:?}");
        }
    }
    for reason in ["psh", "full", "no payload", "cut", "poll end", "padding", "mismatch, sequence", "mismatch, ack"] {
        assert!(reasons.contains(reason), "{reason} in {reasons:?}");
    }
    let config = MergeConfig { explain: true, ..MergeConfig::default() };
    let refused = merge(&file(&shapes(1)[0]), Format::Pcap, &config).map(|(_, report)| report);
    assert!(matches!(refused, Err(CaptureError::NoComments)), "{refused:?}");
}
