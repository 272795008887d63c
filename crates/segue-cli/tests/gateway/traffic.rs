//! Tests of streams and datagrams of two kernels through the gateway, and its counters.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{DEVICE, Family, Host, LinkForm, Peer};
use serde_json::Value;

use crate::bump::{Bump, PATIENCE, TAP, address, bytes, datagrams, stream, stream_in};
use crate::common::SEGUE;

#[test]
fn traffic_passes_in_both_directions() {
    for form in [LinkForm::Nic, LinkForm::Veth] {
        let Some(bump) = Bump::new(form, &[]) else { return };
        address(&bump.receiver, TAP, Peer::B);
        let (near, far) = ((&bump.sender, Peer::A), (&bump.receiver, Peer::B));
        for family in Family::ALL {
            let to = Peer::B.address(0, *family).to_string();
            bump.sender.run("ping", &["-c", "3", "-i", "0.2", "-W", "5", &to]).unwrap();
            stream(near.0, far, *family, &bytes(3_000_000, 1));
            stream(far.0, near, *family, &bytes(3_000_000, 2));
            datagrams(near, far, *family);
            datagrams(far, near, *family);
        }
        bump.assert_no_drops();
        let (outside, inside) = (bump.port(DEVICE), bump.port(TAP));
        for (port, direction) in [(&inside, "transmit"), (&inside, "receive"), (&outside, "transmit")] {
            assert!(port[direction]["trains"].as_u64() > Some(50), "{form}: few trains: {port}");
        }
        bump.assert_all_cross();
        assert_eq!(bump.stop(), Some(0));
    }
}

#[test]
fn a_senders_long_datagrams_are_fragmented_in_front_of_the_other_port_and_the_kernel_puts_them_together() {
    for link in [&["--fragment"][..], &[]] {
        let Some(bump) = Bump::new(LinkForm::Nic, &[&["--tap-mtu", "9000"], link].concat()) else { return };
        address(&bump.receiver, TAP, Peer::B);
        let (near, far) = ((&bump.receiver, Peer::B), (&bump.sender, Peer::A));
        for family in Family::ALL {
            let open = |(host, end): (&Host, Peer)| {
                host.enter(|| UdpSocket::bind((end.address(0, *family), 0))).unwrap().unwrap()
            };
            let (from, to) = (open(near), open(far));
            let (peer, mut got) = (to.local_addr().unwrap(), vec![0; 9000]);
            for len in [100, 1472, 1473, 2953, 8000, 8952] {
                let data = bytes(len, len as u64);
                from.send_to(&data, peer).unwrap();
                // A datagram that may be dropped is waited for only as long as one usually takes.
                let may_fail = link.is_empty() && len > 1452;
                to.set_read_timeout(Some(if may_fail { Duration::from_millis(200) } else { PATIENCE })).unwrap();
                let outcome = loop {
                    match to.recv_from(&mut got) {
                        // An earlier one was late.
                        Ok((came, _)) if came < len => {}
                        other => break other,
                    }
                };
                match outcome {
                    Ok((came, _)) => assert!(got[..came] == data[..], "{family}: {came} of {len} bytes, or other ones"),
                    Err(error) => assert!(may_fail, "{family}: {len} bytes: {error}"),
                }
            }
        }
        let dropped = |name: &str| -> u64 {
            bump.port(name)["drops"].as_object().unwrap().values().filter_map(Value::as_u64).sum()
        };
        // Without the option they are refused, and counted.
        assert_eq!(dropped(DEVICE) > 0, link.is_empty(), "{}", bump.port(DEVICE));
        assert_eq!(bump.stop(), Some(0));
    }
}

#[test]
fn bursts_of_packets_that_are_too_long_are_fragmented_or_counted_one_by_one() {
    const COUNT: usize = 300;
    for options in [&["--fragment"][..], &[]] {
        // With this hold time all datagrams of a burst are joined.
        let options = [&["--tap-mtu", "1400", "--hold-us", "20000"], options].concat();
        let Some(bump) = Bump::new(LinkForm::Nic, &options) else { return };
        address(&bump.receiver, TAP, Peer::B);
        let fragments = options.contains(&"--fragment");
        for (sent, family) in (1..).zip(Family::ALL) {
            let from = bump.sender.enter(|| UdpSocket::bind((Peer::A.address(0, *family), 0))).unwrap().unwrap();
            let to = bump.receiver.enter(|| UdpSocket::bind((Peer::B.address(0, *family), 0))).unwrap().unwrap();
            to.set_read_timeout(Some(PATIENCE)).unwrap();
            let peer = to.local_addr().unwrap();
            // The first datagram resolves the neighbours' addresses.
            from.send_to(b"x", peer).unwrap();
            assert_eq!(to.recv_from(&mut [0; 9]).unwrap().0, 1);
            if !fragments {
                // No datagram must arrive.
                to.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            }
            let data = bytes(if *family == Family::V4 { 1472 } else { 1452 }, 7);
            let mut got = vec![0; 2000];
            for burst in 0..COUNT / 30 {
                (0..30).for_each(|_| assert_eq!(from.send_to(&data, peer).unwrap(), data.len()));
                for _ in 0..if fragments { 30 } else { usize::from(burst == 0) } {
                    match to.recv_from(&mut got) {
                        Ok((len, _)) => assert!(fragments && got[..len] == data[..], "{family}: {len} bytes"),
                        Err(error) => assert!(!fragments, "{family}: {error}"),
                    }
                }
            }
            let dropped = || bump.port(TAP)["drops"]["gso_too_big"].as_u64().unwrap();
            let expected = if fragments { 0 } else { (sent * COUNT) as u64 };
            let since = Instant::now();
            while dropped() < expected && since.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(50));
            }
            assert_eq!(dropped(), expected, "{}", bump.port(TAP));
        }
        assert!(bump.port(TAP)["gso"]["trains_cut"].as_u64() > Some(10), "{}", bump.port(TAP));
        assert_eq!(bump.stop(), Some(0));
    }
}

#[test]
fn a_larger_mtu_is_followed_while_packets_move() {
    let Some(bump) = Bump::new(LinkForm::Nic, &["--tap-mtu", "1400"]) else { return };
    address(&bump.receiver, TAP, Peer::B);
    let to = Peer::B.address(0, Family::V4).to_string();
    let long = || bump.sender.run("ping", &["-c", "1", "-W", "1", "-M", "do", "-s", "1472", &to]);
    bump.sender.run("ping", &["-c", "1", "-W", "30", &to]).unwrap();
    assert!(long().is_err());
    bump.receiver.run("ip", &["link", "set", "dev", TAP, "mtu", "1500"]).unwrap();
    let since = Instant::now();
    while let Err(error) = long() {
        assert!(since.elapsed() < PATIENCE, "{error}");
    }
}

#[test]
fn without_lro_frames_stay_alone() {
    let Some(bump) = Bump::new(LinkForm::Nic, &["--no-lro"]) else { return };
    // Packets that the kernel merges before the gateway must not count as merged by the gateway.
    bump.gateway.run("ethtool", &["-K", DEVICE, "gro", "off"]).unwrap();
    address(&bump.receiver, TAP, Peer::B);
    stream(&bump.sender, (&bump.receiver, Peer::B), Family::V4, &bytes(500_000, 1));
    let inside = bump.port(TAP);
    assert_eq!(inside["transmit"]["trains"], 0, "{inside}");
    assert!(inside["transmit"]["packets"].as_u64() > Some(340), "{inside}");
    bump.assert_no_drops();
}

#[test]
fn pages_of_every_size_carry_frames_and_trains_both_ways() {
    // Trains from both kernels on one link, frames alone on the other.
    for (form, page) in [LinkForm::Veth, LinkForm::Nic].into_iter().flat_map(|form| PAGES.map(|page| (form, page))) {
        let Some(bump) = Bump::with_mtu(form, &["--page", page], "9000") else { return };
        address(&bump.receiver, TAP, Peer::B);
        for (family, data) in [(Family::V4, bytes(600_000, 1)), (Family::V6, bytes(1, 2))] {
            stream(&bump.sender, (&bump.receiver, Peer::B), family, &data);
            stream(&bump.receiver, (&bump.sender, Peer::A), family, &data);
        }
        datagrams((&bump.sender, Peer::A), (&bump.receiver, Peer::B), Family::V6);
        bump.assert_no_drops();
        let inside = bump.port(TAP);
        assert!(inside["transmit"]["trains"].as_u64() > Some(5), "{page}, {form}: {inside}");
    }
}

/// The values of `--page` to test.
const PAGES: [&str; 5] = ["4k", "8k", "16k", "32k", "frame"];

#[test]
fn pure_acks_collapse_in_both_directions_and_are_counted() {
    // Short trains, so that both ends acknowledge often.
    let options = ["--ack-aggregation", "--max-acks", "8", "--max-packets", "2", "--hold-us", "1000"];
    let Some(bump) = Bump::new(LinkForm::Nic, &options) else { return };
    for host in [&bump.sender, &bump.gateway] {
        host.run("ethtool", &["-K", DEVICE, "gro", "off"]).unwrap();
    }
    address(&bump.receiver, TAP, Peer::B);
    for family in Family::ALL {
        stream(&bump.sender, (&bump.receiver, Peer::B), *family, &bytes(3_000_000, 1));
        stream(&bump.receiver, (&bump.sender, Peer::A), *family, &bytes(3_000_000, 2));
    }
    bump.assert_no_drops();
    for name in [DEVICE, TAP] {
        let port = bump.port(name);
        assert!(port["swallowed"].as_u64() > Some(50), "{port}");
    }
    bump.assert_all_cross();
    let text = bump.gateway.run(SEGUE, &["stat", "--why"]).unwrap();
    assert!(text.contains("pure ACKs that were aggregated into newer ones: "), "{text}");
    assert_eq!(bump.stop(), Some(0));
}

#[test]
fn acks_can_collapse_while_data_stays_as_it_comes() {
    let Some(bump) = Bump::new(LinkForm::Nic, &["--no-lro", "--ack-aggregation", "--hold-us", "1000"]) else { return };
    for host in [&bump.sender, &bump.gateway] {
        host.run("ethtool", &["-K", DEVICE, "gro", "off"]).unwrap();
    }
    address(&bump.receiver, TAP, Peer::B);
    stream(&bump.sender, (&bump.receiver, Peer::B), Family::V4, &bytes(3_000_000, 1));
    stream(&bump.receiver, (&bump.sender, Peer::A), Family::V4, &bytes(3_000_000, 1));
    let (outside, inside) = (bump.port(DEVICE), bump.port(TAP));
    assert_eq!(inside["transmit"]["trains"], 0, "{inside}");
    assert!(outside["swallowed"].as_u64().unwrap() + inside["swallowed"].as_u64().unwrap() > 0, "{outside} {inside}");
    bump.assert_no_drops();
}

#[test]
fn a_tunnel_of_the_hosts_kernels_crosses_with_its_trains() {
    // The kernel hands trains in VXLAN to this link whole.
    let Some(bump) = Bump::new(LinkForm::Veth, &[]) else { return };
    address(&bump.receiver, TAP, Peer::B);
    for (host, end) in [(&bump.sender, Peer::A), (&bump.receiver, Peer::B)] {
        let (local, remote) = (end.address(0, Family::V4).to_string(), end.other().address(0, Family::V4).to_string());
        let words = ["link", "add", "vx0", "type", "vxlan", "id", "5", "dstport", "4789", "udpcsum"];
        if host.run("ip", &[&words[..], &["local", &local, "remote", &remote]].concat()).is_err() {
            segue_lab::skip_this_test("this kernel has no VXLAN");
            return;
        }
        host.run("ip", &["addr", "add", &end.prefix(9, Family::V4), "dev", "vx0"]).unwrap();
        host.run("ip", &["addr", "add", &end.prefix(9, Family::V6), "dev", "vx0", "nodad"]).unwrap();
        host.run("ip", &["link", "set", "dev", "vx0", "up"]).unwrap();
    }
    for family in Family::ALL {
        stream_in(9, &bump.sender, (&bump.receiver, Peer::B), *family, &bytes(3_000_000, 1));
        stream_in(9, &bump.receiver, (&bump.sender, Peer::A), *family, &bytes(3_000_000, 2));
    }
    bump.assert_no_drops();
    let outside = bump.port(DEVICE);
    assert!(outside["receive"]["trains"].as_u64() > Some(20), "{outside}");
}
