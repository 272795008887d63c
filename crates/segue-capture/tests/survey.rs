//! Tests of the counters of survey, and of reports and errors.

mod common;

use common::packets::{train, tunnels, v4, v6};
use common::{file_of, merge, merge_packets, merging, ports, survey, undo};
use segue::gro::Profile;
use segue_capture::file::{
    Format, Order, Outgoing, PcapHeader, ReadError, Reader, Writer, interface_block, link, section_block,
};
use segue_capture::merge::MergeRules;
use segue_capture::survey::SIZES;
use segue_capture::verify::{VerifyConfig, verify};
use segue_capture::{CaptureError, PacketVerdict};
use segue_testkit::flow::Sender;

#[test]
fn flows_sizes_and_what_would_merge_are_counted() {
    let mut tcp = Sender::tcp(v4(), 3, 1, vec![]);
    let mut packets: Vec<Vec<u8>> = (0..10).map(|_| tcp.send(1000, 0).bytes()).collect();
    packets.push(Sender::udp(v6(), 4).send(20, 0).bytes());
    packets.push(train(v4(), 3000, 0, vec![]));
    let first = packets[0].clone();
    packets.extend(tunnels().iter().map(|(_, tunnel)| tunnel.wrap(&first)));
    for (profile, profiles) in [(Profile::Strict, 2), (Profile::linux(), 2), (Profile::Lro, 3)] {
        let found = survey(&file_of(&packets, link::RAW), MergeRules { profile, ..MergeRules::default() });
        assert_eq!((found.format, found.packets, found.not_ip), (Format::Pcap, packets.len() as u64, 0));
        assert_eq!(found.bytes, packets.iter().map(|packet| packet.len() as u64).sum::<u64>());
        assert_eq!(found.sizes.iter().sum::<u64>(), found.packets);
        assert_eq!(found.sizes[SIZES.iter().position(|size| *size == 9014).unwrap()], 1, "the train");
        assert_eq!((found.trains, found.fragments, found.interfaces.len()), (1, 0, 1));
        let encap: u64 = found.encap.values().sum();
        assert_eq!((encap, found.encap["plain"]), (found.packets, 12), "{:?}", found.encap);
        for name in ["gue", "vxlan", "geneve", "fou", "gre", "ip"] {
            assert!(found.encap.contains_key(name), "{name}: {:?}", found.encap);
        }
        let flow = found.flows.iter().max_by_key(|flow| flow.packets).unwrap();
        assert!(flow.is_tcp && flow.source.is_ipv4() && flow.bytes > 10_000, "{flow:?}");
        assert!(found.flows.iter().any(|flow| !flow.is_tcp && flow.destination.is_ipv6()));
        // As many packets are left as a merge writes.
        assert_eq!(found.would_leave.len(), profiles);
        for (profile, left) in found.would_leave {
            let rules = MergeRules { profile, ..MergeRules::default() };
            assert_eq!(left, merge_packets(&packets, link::RAW, rules).1.packets_out, "{profile:?}");
        }
        assert!(found.gro.trains >= 1 && found.fault.is_none());
    }
}

#[test]
fn where_too_many_packets_wait_a_survey_ends_their_trains_as_a_merge_does() {
    let head = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: 0, link: u32::from(link::RAW) };
    let mut first = section_block(Order::NATIVE, &[]);
    (0..9).for_each(|_| first.extend(interface_block(Order::NATIVE, &head.interface())));
    let mut writer = Writer::new(first, Format::Pcapng);
    // More than 65,536 packets at one time, and of no connection as many as a train may have.
    let mut senders: Vec<Sender> = (0..8).map(|flow| Sender::tcp(v4(), flow, 1, vec![])).collect();
    for _ in 0..950 {
        for sender in &mut senders {
            let data = sender.send(1, 0).bytes();
            for interface in 0..9 {
                let len = data.len() as u32;
                let packet = Outgoing { interface, ticks: Some(0), len, data: &[&data], options: &[] };
                writer.packet(&packet).unwrap();
            }
        }
    }
    let file = writer.finish().unwrap();
    let (_, merged) = merge(&file, Format::Pcapng, &merging(MergeRules::default())).unwrap();
    assert_eq!((merged.packets_in, merged.packets_out), (68_400, 2 * 72));
    assert_eq!(survey(&file, MergeRules::default()).would_leave[0], (Profile::Strict, merged.packets_out));
}

#[test]
fn a_checked_packet_names_its_headers_addresses_and_length() {
    let (_, gue) = tunnels().remove(4);
    let inner = Sender::tcp(v6(), 3, 1, vec![]).send(100, 0).bytes();
    let packets = [gue.wrap(&inner), vec![0x60; 3], inner.clone()];
    let file = file_of(&packets, link::RAW);
    let mut found = Vec::new();
    let config = VerifyConfig { tunnels: ports(), mtu: Some(inner.len()) };
    let report = verify(&mut Reader::new(&file[..]).unwrap(), &config, |packet| {
        let addresses = packet.addresses().map(|(source, destination)| (source.is_ipv4(), source != destination));
        found.push((packet.verdict, packet.headers().len(), addresses, packet.ip_len(), packet.is_above_mtu));
        assert_eq!(packet.is_malformed(), packet.verdict == PacketVerdict::Malformed);
    });
    assert_eq!(report.unwrap().above_mtu, 1);
    assert_eq!(found[0], (PacketVerdict::Good, 5, Some((true, true)), Some(packets[0].len()), true));
    assert_eq!(found[1].0.name(), "malformed");
    assert_eq!(found[2], (PacketVerdict::Good, 2, Some((false, true)), Some(inner.len()), false));
}

#[test]
fn errors_say_what_failed_and_keep_its_cause() {
    let no_notes = undo(&file_of(&[], link::RAW), Format::Pcapng).map(|(_, report)| report).unwrap_err();
    let cases = [
        (no_notes, "no packet carries the note of a merge", false),
        (CaptureError::Swallowed { packet: 7 }, "packet 7 stands for acknowledgments that the merge left out", false),
        (CaptureError::NoComments, "pcap has no place for comments", false),
        (CaptureError::Read(ReadError::Empty), "cannot read the capture: the file is empty", true),
        (
            CaptureError::Write(std::io::Error::from_raw_os_error(28)),
            "cannot write the capture: No space left on device (os error 28)",
            true,
        ),
    ];
    for (error, text, has_cause) in cases {
        assert_eq!((error.to_string().as_str(), std::error::Error::source(&error).is_some()), (text, has_cause));
    }
}
