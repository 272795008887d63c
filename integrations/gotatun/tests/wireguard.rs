//! Tests of endpoints of all forms with each other and with wireguard-go: they carry TCP connections, and trains reach
//! the receiver's kernel.

mod common;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use segue_gotatun::Form;
use segue_lab::{Family, Host, LinkForm, Peer, Process, connect, reach};

const DATA: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

fn data(seed: usize) -> Vec<u8> {
    (0..DATA).map(|n| (n * 5 + n / 249 + seed) as u8).collect()
}

/// Sends the data from one host to the address of another, over TCP, and returns whether every byte arrived.
fn carries(from: &Host, to: &Host, address: IpAddr, seed: usize) -> bool {
    let listener = to.enter(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let receiver = thread::spawn(move || {
        let mut got = Vec::new();
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_end(&mut got).unwrap();
        got
    });
    let mut stream = from.enter(|| TcpStream::connect_timeout(&address, PATIENCE).unwrap()).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&data(seed)).unwrap();
    drop(stream);
    receiver.join().unwrap() == data(seed)
}

/// Returns the kernel's counters of a device of a host: bytes and packets that the program wrote to it.
fn written(host: &Host, device: &str) -> [u64; 2] {
    let text = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{device}:"))).unwrap().to_owned();
    let mut words = line.split_whitespace().map(|word| word.parse().unwrap());
    [(); 2].map(|()| words.next().unwrap())
}

fn hosts() -> Option<[Host; 2]> {
    if let Some(reason) = segue_lab::unavailable() {
        segue_lab::skip_this_test(&reason);
        return None;
    }
    let hosts = ["a", "b"].map(|name| Host::new(name).unwrap());
    connect(&hosts[0], &hosts[1], LinkForm::Nic).unwrap();
    Some(hosts)
}

/// Sends in both directions and in both families through the tunnel with the given number.
fn both_directions([a, b]: &[Host; 2], net: u8) {
    let at = |end: Peer, family| end.address(net, family);
    reach((a, at(Peer::A, Family::V4)), (b, at(Peer::B, Family::V4)), PATIENCE).unwrap();
    assert!(carries(a, b, at(Peer::B, Family::V4), 1), "IPv4, from a to b");
    assert!(carries(b, a, at(Peer::A, Family::V6), 2), "IPv6, from b to a");
}

#[test]
fn every_form_understands_every_other_and_segue_writes_trains() -> Result<(), Box<dyn Error>> {
    let Some(hosts) = hosts() else { return Ok(()) };
    let pairs = [(Form::TunUdp, Form::Plain), (Form::Plain, Form::Tun), (Form::Tun, Form::TunUdp)];
    for ((near, far), net) in pairs.into_iter().zip(1..) {
        let _ends = [common::start(&hosts[0], Peer::A, net, near)?, common::start(&hosts[1], Peer::B, net, far)?];
        both_directions(&hosts, net);
        for (host, form) in hosts.iter().zip([near, far]) {
            let [bytes, packets] = written(host, &format!("got{net}"));
            assert!(bytes > DATA as u64, "{form:?}: {bytes} bytes");
            // Acknowledgements are among the packets: one by one, the mean is below the MTU.
            let mean = bytes / packets;
            assert_eq!(mean > u64::from(segue_gotatun::MTU), form != Form::Plain, "{form:?}: {mean} bytes per packet");
        }
    }
    Ok(())
}

#[test]
fn wireguard_go_understands_it() -> Result<(), Box<dyn Error>> {
    let Some(hosts) = hosts() else { return Ok(()) };
    let device = format!("wgot{:x}", std::process::id());
    let settings = format!(
        "set=1\nprivate_key={}\nlisten_port=51821\npublic_key={}\nendpoint={}:51821\nallowed_ip=0.0.0.0/0\nallowed_ip=::/0\n\n",
        common::secret(Peer::B),
        common::PUBLICS[0],
        Peer::A.address(0, Family::V4)
    );
    let _theirs: Process = match segue_lab::start_wireguard_go(&hosts[1], &device, &settings)? {
        Ok(process) => process,
        Err(why) => {
            segue_lab::skip_this_test(&why);
            return Ok(());
        }
    };
    common::configure(&hosts[1], Peer::B, 1, &device)?;
    let _ours = common::start(&hosts[0], Peer::A, 1, Form::TunUdp)?;
    both_directions(&hosts, 1);
    Ok(())
}

#[test]
fn the_adapters_are_as_short_as_is_promised() {
    let lines = |program: &str| {
        program.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
    };
    let (tun, udp) = (lines(include_str!("../src/tun.rs")), lines(include_str!("../src/udp.rs")));
    assert!(tun <= 70 && udp <= 30, "{tun} and {udp} lines");
}
