//! A test that tshark reassembles the engine's fragments from a capture file.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use pcap_file::pcap::{PcapPacket, PcapWriter};
use segue::gso::{Fragment, Limits};
use segue::packet::{Csum, LayerCsum, Offload, Start, Unit};
use segue_testkit::Rng;
use segue_testkit::build::{Ethernet, Gre, Ip, L4, Packet, Shim, Tunnel, Udp, V4, V6};
use segue_testkit::strategy::FOU_PORTS;

use crate::case::*;
use crate::single::prime;

fn tunnels(inner_is_v4: bool) -> Vec<Vec<Tunnel>> {
    let plain = |ip: Ip, gre| Tunnel { ip, udp: None, gre, ethernet: None };
    let gre = Some(Gre { checksum: true, key: Some(7), seq: None });
    let bridged = Ethernet { tags: vec![(0x8100, 9)], ..Ethernet::default() };
    let mut all = vec![vec![]];
    for outer in [v4(0, 0xfffe), v6(0)] {
        all.push(vec![plain(outer.clone(), None)]);
        all.push(vec![plain(outer.clone(), gre)]);
        all.push(vec![Tunnel { ethernet: Some(bridged.clone()), ..plain(outer.clone(), gre) }]);
        all.push(vec![over_udp(outer.clone(), Shim::Fou, None, true, inner_is_v4)]);
        all.push(vec![over_udp(outer.clone(), Shim::Fou, gre, true, inner_is_v4)]);
        all.push(vec![plain(outer.clone(), gre), plain(v6(2), None)]);
    }
    all
}

#[test]
fn tshark_puts_the_fragments_of_every_datagram_together() {
    let mut expected = Vec::new();
    let path = std::env::temp_dir().join(format!("segue-fragments-{}.pcap", std::process::id()));
    let mut file = PcapWriter::new(File::create(&path).unwrap()).unwrap();
    let mut write = |bytes: &[u8]| {
        let packet = PcapPacket::new(Duration::from_secs(1), bytes.len() as u32, bytes);
        file.write_packet(&packet).unwrap();
    };
    let mut id = 0;
    let extensions = vec![(0, vec![1, 4, 0, 0, 0, 0]), (60, vec![1, 4, 0, 0, 0, 0])];
    let options = vec![7, 7, 4, 1, 2, 3, 4];
    for ip in [
        Ip::V4(V4 { df: false, ..V4::new(1, 1, 2) }),
        Ip::V4(V4 { df: false, options, ..V4::new(1, 1, 2) }),
        Ip::V6(V6::new(1, 1, 2)),
        Ip::V6(V6 { extensions, ..V6::new(1, 1, 2) }),
    ] {
        for tunnels in tunnels(matches!(ip, Ip::V4(_))) {
            for tags in [vec![], vec![(0x8100, 5)], vec![(0x88a8, 5), (0x8100, 6)]] {
                for (mtu, len) in [(576, 1501), (1500, 9001), (1500, 1473), (1500, 65_000)] {
                    if len == 65_000 && !(tunnels.is_empty() && tags.is_empty()) {
                        continue;
                    }
                    // Fragments of different datagrams must not be taken for each other.
                    id += 1;
                    let mut ip = ip.clone();
                    match &mut ip {
                        Ip::V4(ip) => ip.id = id,
                        Ip::V6(ip) => ip.src[14] = id as u8,
                    }
                    if let Ip::V6(ip) = &mut ip {
                        ip.src[13] = (id >> 8) as u8;
                    }
                    let udp = Udp { src_port: 1000, dst_port: 2000, checksum: true };
                    let inner = Packet { ip, l4: L4::Udp(udp), data: Rng::new(u64::from(id)).bytes(len) };
                    let bytes = tunnels.iter().rev().fold(inner.bytes(), |packet, tunnel| tunnel.wrap(&packet));
                    let frame = Ethernet { tags: tags.clone(), dst: [2; 6], src: [2, 0, 0, 0, 0, 1] }.wrap(&bytes);
                    let mut packet = load(&frame, Start::Ethernet);
                    packet.offload = Offload::plain(Unit::Whole(Csum::Partial));
                    for tunnel in tunnels.iter().rev() {
                        packet.offload.push_outer(layer_of(tunnel, LayerCsum::Owed));
                    }
                    prime(&mut packet, &inner.bytes());
                    let limits = Limits { mtu, fragment: Fragment::Sender { clears_df: false }, ..Limits::NONE };
                    let out = split_both(&packet, &limits).unwrap().0;
                    assert!(out.len() > 1);
                    out.iter().for_each(|out| write(&out.bytes));
                    let hex: String = inner.data.iter().map(|byte| format!("{byte:02x}")).collect();
                    expected.push(hex);
                }
            }
        }
    }
    let mut command = Command::new("tshark");
    command.args(["-n", "-q", "-o", "ip.defragment:TRUE", "-o", "ipv6.defragment:TRUE"]);
    command.args(["-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-d", "udp.port==2000,data"]);
    for ((port, _), kind) in FOU_PORTS.iter().zip(["ip", "ipv6", "gre"]) {
        command.args(["-d", &format!("udp.port=={port},{kind}")]);
    }
    command.args(["-Y", "udp.dstport==2000", "-T", "fields", "-E", "occurrence=a", "-E", "separator=/t"]);
    command.args(["-e", "udp.payload", "-e", "udp.checksum.status", "-e", "ip.checksum.status"]);
    let output = command.arg("-r").arg(&path).output();
    std::fs::remove_file(&path).unwrap();
    let Ok(output) = output else { return segue_lab::skip_this_test("tshark is not installed") };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut found = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let all_good = |field: &str| field.split(',').all(|status| matches!(status, "" | "1"));
        assert!(all_good(fields[1]) && all_good(fields[2]), "{}", &line[line.len() - 100..]);
        found.push(fields[0].rsplit(',').next().unwrap().to_owned());
    }
    assert_eq!(found.len(), expected.len(), "datagrams that tshark put together");
    for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!(found == expected, "datagram {number}: {} bytes of {}", found.len() / 2, expected.len() / 2);
    }
}
