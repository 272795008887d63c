//! Measures the throughput of a TCP flow through VXLAN under a flood of 100,000 malformed and spoofed packets per
//! second: through the kernel's own VXLAN and through segue over the in-kernel path, in turn. `make figures
//! ONLY=fastpath-flood` judges the lines that it prints. The words are the largest number of rounds, and of seconds: no
//! round begins for which those before it leave no time.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use segue_lab::load::{self, Load, Style};
use segue_lab::{Family, Host, LinkForm, Peer, Proto, reach};
use segue_tests::flood::Flood;
use segue_tests::{Ground, Inside, Random, Shape, Stat, Tunnel, routed, wire};

const NET: u8 = 1;
/// Rate of the malformed and spoofed packets, packets per second.
const RATE: u32 = 100_000;
const SECONDS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the Ethernet address of the link of a host.
fn station(host: &Host) -> Vec<u8> {
    let text = host.run("cat", &["/sys/class/net/eth0/address"]).expect("an address");
    text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")).collect()
}

/// Returns frames from A to B that no VXLAN 42 may deliver: other flags, reserved bits, another network, a group as the
/// sender inside, a header that is cut off, and a good packet of another host.
fn frames(ground: &Ground) -> Vec<Vec<u8>> {
    let link = [station(&ground.b), station(&ground.a), vec![8, 0]].concat();
    let inner = wire::udp_packet((address(19, 1, 1), 4000), (address(19, 1, 2), 9), &[7; 64], 0, false).packet;
    let good = [&[8, 0, 0, 0, 0, 0, 42, 0, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &inner].concat();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let mut all = [(0, 0), (1, 0x20), (3, 1), (7, 1), (4, 1), (14, 1)].map(|(at, byte)| changed(at, byte)).to_vec();
    all.push(good[..12].to_vec());
    let around = |from: IpAddr, bytes: &[u8]| {
        let mut packet =
            wire::udp_packet((from, 50_000), (address(18, 0, 2), Shape::port(NET)), bytes, 0, false).packet;
        packet[26..28].fill(0);
        [&link[..], &packet].concat()
    };
    let mut frames: Vec<Vec<u8>> = all.iter().map(|bytes| around(address(18, 0, 1), bytes)).collect();
    frames.push(around(address(18, 0, 77), &good));
    frames
}

fn address(net: u8, third: u8, last: u8) -> IpAddr {
    Ipv4Addr::new(198, net, third, last).into()
}

/// Creates the kernel's VXLAN devices on both hosts.
fn kernel(ground: &Ground) {
    for (host, end) in [(&ground.a, Peer::A), (&ground.b, Peer::B)] {
        let [local, remote] = [end, end.other()].map(|end| end.address(0, Family::V4));
        let port = Shape::port(NET);
        let ends = format!("dstport {port} dev eth0 local {local} remote {remote}");
        routed::ip(host, &format!("link add vx0 type vxlan id 42 {ends} noudpcsum"));
        routed::ip(host, &format!("addr add {} dev vx0", end.prefix(NET, Family::V4)));
        routed::ip(host, "link set vx0 up");
    }
}

/// Returns the throughput of a TCP flow from A to B without and with a flood, in Gbit/s.
fn throughput(ground: &Ground) -> [f64; 2] {
    let [from, to] = [Peer::A, Peer::B].map(|end| end.address(NET, Family::V4));
    reach((&ground.a, from), (&ground.b, to), PATIENCE).expect("the tunnel carries datagrams");
    let (client, server) = (&ground.a, &ground.b);
    client.set_sysctl("ipv4/tcp_congestion_control", "reno").expect("reno");
    let once = || {
        let style = Style::default();
        let load = Load { client, server, to, proto: Proto::Tcp, seconds: SECONDS, parallel: 1, style };
        load::run(&load).expect("iperf3").gbps()
    };
    let calm = once();
    let all = frames(ground);
    let any = move |random: &mut Random| all[random.word() as usize % all.len()].clone();
    let flood = Flood::start(&ground.a, "eth0", RATE, any);
    let flooded = once();
    drop(flood);
    [calm, flooded]
}

fn main() {
    let words: Vec<u64> = std::env::args().skip(1).map(|word| word.parse().expect("a number")).collect();
    let [rounds, seconds] = words[..] else { panic!("two numbers: of rounds and of seconds") };
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    for round in 0..rounds {
        let start = Instant::now();
        if begin.elapsed() + longest > Duration::from_secs(seconds) {
            break;
        }
        for form in [LinkForm::Veth, LinkForm::Nic] {
            let Some(ground) = Ground::new("fastpath_flood", form, &["iperf3"]) else { return };
            kernel(&ground);
            let [calm, flooded] = throughput(&ground);
            println!("round {round} link {form:?} kernel {calm:.4} {flooded:.4}");
            drop(ground);

            let Some(ground) = Ground::new("fastpath_flood", form, &["iperf3"]) else { return };
            let extra = &["fastpath", "require"];
            let shape = Shape { extra, ..Shape::new(Inside::VxlanZero, segue_tests::Carrier::Bare, Family::V4) };
            let ends = [(&ground.a, Peer::A), (&ground.b, Peer::B)];
            let tunnels = ends.map(|(host, end)| Tunnel::start(host, &ground.program, &shape.words(end, NET)));
            let [calm, flooded] = throughput(&ground);
            let drops: u64 = Stat::read(&ground.b, &ground.program, &Shape::device(NET)).drops().values().sum();
            println!("round {round} link {form:?} path {calm:.4} {flooded:.4} drops {drops}");
            drop(tunnels);
        }
        longest = longest.max(start.elapsed());
    }
}
