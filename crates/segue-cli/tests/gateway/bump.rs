//! A gateway between two hosts, and traffic through it.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{DEVICE, Family, Host, LinkForm, Peer, Process};
use segue_testkit::Rng;
use serde_json::Value;

use crate::common::SEGUE;
use crate::transfer::transfer;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Name of the TAP that the gateway creates.
pub(crate) const TAP: &str = "lro0";
/// TCP port of the hosts' connections.
pub(crate) const PORT: u16 = 5001;

/// A sender, and a gateway whose TAP is in a third host.
pub(crate) struct Bump {
    pub(crate) sender: Host,
    pub(crate) gateway: Host,
    pub(crate) receiver: Host,
    pub(crate) segue: Process,
}

impl Bump {
    /// Starts a gateway with an MTU of 1500; `None`, noted as a skip, where hosts cannot be made.
    #[track_caller]
    pub(crate) fn new(form: LinkForm, options: &[&str]) -> Option<Bump> {
        Bump::with_mtu(form, options, "1500")
    }

    #[track_caller]
    pub(crate) fn with_mtu(form: LinkForm, options: &[&str], mtu: &str) -> Option<Bump> {
        if let Some(reason) = segue_lab::unavailable() {
            segue_lab::skip_this_test(&reason);
            return None;
        }
        let [sender, gateway, receiver] = ["sender", "gateway", "receiver"].map(|name| Host::new(name).unwrap());
        segue_lab::connect(&sender, &gateway, form).unwrap();
        gateway.run("ip", &["link", "set", "dev", DEVICE, "addrgenmode", "none"]).unwrap();
        gateway.run("ip", &["addr", "flush", "dev", DEVICE]).unwrap();
        for host in [&sender, &gateway] {
            host.run("ip", &["link", "set", "dev", DEVICE, "mtu", mtu]).unwrap();
        }
        let mut command = gateway.command(SEGUE);
        command.args(["gateway", DEVICE, &format!("tap:{TAP}@{}", receiver.net_path()), "-j"]).args(options);
        let mut segue = Process::spawn(command, b"").unwrap();
        segue.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap();
        Some(Bump { sender, gateway, receiver, segue })
    }

    /// Returns the counters of one port.
    pub(crate) fn port(&self, name: &str) -> Value {
        self.ports()[name].clone()
    }

    /// Returns the counters of all ports at one moment.
    pub(crate) fn ports(&self) -> Value {
        let text = self.gateway.run(SEGUE, &["stat", "-j"]).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["instances"][0]["kind"], "gateway", "{text}");
        let ports = document["instances"][0]["ports"].clone();
        assert!(ports[DEVICE].is_object() && ports[TAP].is_object(), "{text}");
        ports
    }

    /// Waits until every segment received by one port was sent by the other or swallowed: hosts may send neighbour
    /// discovery at any time, and held packets may be joined by later ones.
    pub(crate) fn assert_all_cross(&self) {
        let since = Instant::now();
        loop {
            let ports = self.ports();
            let count = |value: &Value| value.as_u64().unwrap();
            let crossed = [(DEVICE, TAP), (TAP, DEVICE)].into_iter().all(|(here, there)| {
                let left = count(&ports[there]["transmit"]["segments"]) + count(&ports[here]["swallowed"]);
                count(&ports[here]["receive"]["segments"]) == left
            });
            if crossed {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{ports}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn assert_no_drops(&self) {
        for name in [DEVICE, TAP] {
            let port = self.port(name);
            let dropped: u64 = port["drops"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
            assert_eq!(dropped, 0, "{port}");
        }
    }

    /// Stops the gateway and returns its exit status.
    pub(crate) fn stop(mut self) -> Option<i32> {
        self.segue.stop(PATIENCE)?.code()
    }
}

pub(crate) fn address(host: &Host, device: &str, end: Peer) {
    for family in Family::ALL {
        let prefix = end.prefix(0, *family);
        let words: &[&str] = if *family == Family::V6 { &["nodad"] } else { &[] };
        host.run("ip", &[&["addr", "add", &prefix, "dev", device][..], words].concat()).unwrap();
    }
}

/// Returns pseudo-random bytes.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

/// Sends `data` over a connection between the two hosts and compares the received bytes.
pub(crate) fn stream(from: &Host, to: (&Host, Peer), family: Family, data: &[u8]) {
    stream_in(0, from, to, family, data);
}

/// Sends `data` like [`stream`], but in the given network of the hosts.
pub(crate) fn stream_in(net: u8, from: &Host, to: (&Host, Peer), family: Family, data: &[u8]) {
    let address = SocketAddr::new(to.1.address(net, family), PORT);
    let got = transfer(from, to.0, address, data, PATIENCE);
    assert!(got == data, "{family}: {} of {} bytes, or other ones", got.len(), data.len());
}

pub(crate) fn datagrams(from: (&Host, Peer), to: (&Host, Peer), family: Family) {
    let open =
        |(host, end): (&Host, Peer)| host.enter(|| UdpSocket::bind((end.address(0, family), 0))).unwrap().unwrap();
    let (near, far) = (open(from), open(to));
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let data: Vec<Vec<u8>> =
        (0..120).map(|index| bytes([1400, 1400, 1400, 900, 1, 0][index % 6], index as u64)).collect();
    let mut got = vec![0; 2000];
    for burst in data.chunks(30) {
        burst.iter().for_each(|data| {
            near.send_to(data, far.local_addr().unwrap()).unwrap();
        });
        for data in burst {
            let (len, peer) = far.recv_from(&mut got).unwrap();
            assert!(got[..len] == data[..] && peer == near.local_addr().unwrap(), "{family}: {len} bytes");
        }
    }
}
