//! Command `wireguard ROUNDS SECONDS`, which measures WireGuard between two hosts, each with a dedicated processor:
//! boringtun with segue's device, boringtun with tun-rs's, and wireguard-go, alternating with loads of iperf3. Both of
//! the first two send and receive by segue's UDP functions, so that the device alone differs. Prints a line for each
//! measurement: form, load, Gbit/s, CPU seconds per gigabyte of both ends.
//!
//! `wireguard end FORM DEVICE LOCAL:PORT PEER:PORT SECRET PUBLIC` runs one end; SECRET and PUBLIC are the byte of which
//! a private key of the laboratory consists, and the peer's public key, in hexadecimal digits.

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{env, io};

use boringtun::noise::{Tunn, TunnResult};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use segue_boringtun::Wireguard;
use segue_lab::load::{self, Load, Style};
use segue_lab::{Cpu, Family, Host, LinkForm, Peer, Process, Proto, connect, cores, reach, start_wireguard_go};
use segue_port::tun::{Tun, TunConfig};
use segue_port::udp::{Receiver, Sender};
use tun_rs::{DeviceBuilder, GROTable, IDEAL_BATCH_SIZE, SyncDevice, VIRTIO_NET_HDR_LEN};

/// Private keys, each one byte repeated 32 times that X25519's clamping leaves unchanged.
const SECRETS: [u8; 2] = [0x40, 0x48];
/// Public keys of [`SECRETS`].
const PUBLICS: [&str; 2] = [
    "d7b5e81d336e578b13b8d706e82d061e3038c96bce66cdcf50d566b96ddbba10",
    "9177b23278cbf0f3d17c36f2acc9b55e9c85f87b220a5386ec370d663e20e337",
];
const FORMS: [&str; 3] = ["segue", "tun-rs", "wireguard-go"];
const LOADS: [(&str, u32); 2] = [("1 flow", 1), ("8 flows", 8)];
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that WireGuard adds to a packet, and the least memory that `Tunn` needs for a datagram.
const ROOM: (usize, usize) = (32, 148);

/// The program of the integration with tun-rs's device instead of segue's.
struct Beside {
    device: SyncDevice,
    socket: UdpSocket,
    peer: SocketAddr,
    tunn: Tunn,
    sender: Sender,
    receiver: Receiver,
    table: GROTable,
    /// A read of the device, and the packets that it is split into.
    read: Vec<u8>,
    packets: Vec<Vec<u8>>,
    sizes: Vec<usize>,
    /// Datagrams, and opened packets after room for a virtio-net header: as many of the vectors as are used.
    sealed: Vec<Vec<u8>>,
    opened: Vec<Vec<u8>>,
}

impl Beside {
    fn new(device: SyncDevice, socket: UdpSocket, peer: SocketAddr, tunn: Tunn) -> Beside {
        let buffers = |len: usize| vec![vec![0; len]; IDEAL_BATCH_SIZE];
        Beside {
            device,
            receiver: Receiver::new(&socket),
            socket,
            peer,
            tunn,
            sender: Sender::new(),
            table: GROTable::default(),
            read: vec![0; VIRTIO_NET_HDR_LEN + 65_535],
            packets: buffers(2048),
            sizes: vec![0; IDEAL_BATCH_SIZE],
            sealed: buffers(2048 + ROOM.0 + ROOM.1),
            opened: Vec::new(),
        }
    }

    fn outward(&mut self) -> io::Result<()> {
        let count = self.device.recv_multiple(&mut self.read, &mut self.packets, &mut self.sizes, 0)?;
        let mut lens = Vec::with_capacity(count);
        for (packet, len) in self.packets.iter().zip(&self.sizes[..count]) {
            let memory = &mut self.sealed[lens.len()];
            if let TunnResult::WriteToNetwork(sealed) = self.tunn.encapsulate(&packet[..*len], memory) {
                lens.push(sealed.len());
            }
        }
        let (sealed, peer) = (&self.sealed, self.peer);
        let list: Vec<&[u8]> = sealed.iter().zip(&lens).map(|(memory, len)| &memory[..*len]).collect();
        match self.sender.send(&self.socket, &list, |datagram| (datagram, Some(peer))) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    fn inward(&mut self) -> io::Result<()> {
        let mut used = 0;
        for (datagram, from) in self.receiver.receive(&self.socket)?.iter_mut() {
            if used == self.opened.len() {
                // Room for a train after the packet, as tun-rs wants it.
                self.opened.push(Vec::with_capacity(VIRTIO_NET_HDR_LEN + 65_535));
            }
            let place = &mut self.opened[used];
            place.clear();
            place.resize(VIRTIO_NET_HDR_LEN + datagram.len() + ROOM.1, 0);
            let mut input = &*datagram;
            loop {
                match self.tunn.decapsulate(Some(from.ip()), input, &mut place[VIRTIO_NET_HDR_LEN..]) {
                    TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                        let len = packet.len();
                        place.truncate(VIRTIO_NET_HDR_LEN + len);
                        used += 1;
                    }
                    TunnResult::WriteToNetwork(answer) => {
                        (self.peer, input) = (from, &[]);
                        _ = self.sender.send(&self.socket, &[answer], |answer| (answer, Some(from)));
                        continue;
                    }
                    TunnResult::Done | TunnResult::Err(_) => {}
                }
                break;
            }
        }
        self.device.send_multiple(&mut self.table, &mut self.opened[..used], VIRTIO_NET_HDR_LEN).map(drop)
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut ready =
            [self.device.as_fd(), self.socket.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 250_000_000 }))?;
        let [device, network] = ready.map(|fd| !fd.revents().is_empty());
        let idle = |result: io::Result<()>| match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result,
        };
        if device {
            idle(self.outward())?;
        }
        if network {
            idle(self.inward())?;
        }
        if let TunnResult::WriteToNetwork(datagram) = self.tunn.update_timers(&mut self.sealed[0]) {
            self.socket.send_to(datagram, self.peer).map(drop)?;
        }
        Ok(())
    }
}

fn key(text: &str) -> [u8; 32] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("a key"))
}

fn end(words: &[&str]) -> Result<(), Box<dyn Error>> {
    let [form, device, local, peer, secret, public] = words else { return Err("end wants six words".into()) };
    let socket = UdpSocket::bind(local.parse::<SocketAddr>()?)?;
    let secret = [u8::from_str_radix(secret, 16)?; 32];
    let tunn = Tunn::new(secret.into(), key(public).into(), None, None, 1, None);
    let peer = peer.parse()?;
    if *form == "segue" {
        let mut end = Wireguard::new(Tun::open(&TunConfig::ip(*device), [1, 2])?, socket, peer, tunn);
        println!("running");
        loop {
            end.turn()?;
        }
    }
    let device = DeviceBuilder::new().name(*device).with(|builder| _ = builder.offload(true)).build_sync()?;
    device.set_nonblocking(true)?;
    let mut end = Beside::new(device, socket, peer, tunn);
    println!("running");
    loop {
        end.turn()?;
    }
}

/// Starts an endpoint of a form in its host; `None` where it is not available.
fn start(host: &Host, end: Peer, net: u8, form: &str) -> Result<Option<Process>, Box<dyn Error>> {
    // The control sockets of wireguard-go lie in a directory that hosts share.
    let device = format!("bw{net}{}{:x}", end as usize, std::process::id());
    let port = 51_820 + u16::from(net);
    let peer = format!("{}:{port}", end.other().address(0, Family::V4));
    let (secret, public) = (format!("{:02x}", SECRETS[end as usize]), PUBLICS[1 - end as usize]);
    let process = if form == "wireguard-go" {
        let settings = format!(
            "set=1\nprivate_key={}\nlisten_port={port}\npublic_key={public}\nendpoint={peer}\nallowed_ip=0.0.0.0/0\n\n",
            secret.repeat(32)
        );
        match start_wireguard_go(host, &device, &settings)? {
            Ok(process) => process,
            Err(why) => {
                eprintln!("wireguard: no wireguard-go: {why}");
                return Ok(None);
            }
        }
    } else {
        let mut command = host.command(env::current_exe()?);
        command.args(["end", form, &device, &format!("0.0.0.0:{port}"), &peer, &secret, public]);
        let mut process = Process::spawn(command, b"")?;
        process.wait_for_line("running", PATIENCE)?;
        process
    };
    host.run("ip", &["addr", "add", &end.prefix(net, Family::V4), "dev", &device])?;
    host.run("ip", &["link", "set", &device, "up", "mtu", "1420"])?;
    Ok(Some(process))
}

fn measure(rounds: u32, seconds: u32) -> Result<(), Box<dyn Error>> {
    let mut hosts = [Host::new("a")?, Host::new("b")?];
    let free = cores();
    for (host, core) in hosts.iter_mut().zip(&free) {
        // Processes of a host, its loads among them, share one processor.
        let cpu = if free.len() > 1 { Cpu::on_core(*core, None)? } else { Cpu::new() };
        host.account(&Arc::new(cpu));
    }
    let [a, b] = &hosts;
    connect(a, b, LinkForm::Nic)?;
    let mut ends = Vec::new();
    for (form, net) in FORMS.into_iter().zip(1..) {
        let Some(near) = start(a, Peer::A, net, form)? else { continue };
        let Some(far) = start(b, Peer::B, net, form)? else { continue };
        ends.push((form, net, near, far));
        let [from, to] = [Peer::A, Peer::B].map(|end| end.address(net, Family::V4));
        reach((a, from), (b, to), PATIENCE)?;
    }
    for _ in 0..rounds {
        for (what, parallel) in LOADS {
            for (form, net, ..) in &ends {
                let to = Peer::B.address(*net, Family::V4);
                let style = Style::default();
                let load = Load { client: a, server: b, to, proto: Proto::Tcp, seconds, parallel, style };
                let outcome = load::run(&load)?;
                let cpu = outcome.cpu_s.unwrap_or(0.0) + outcome.server_cpu_s.unwrap_or(0.0);
                println!("{form}: {what}: {:.4} {:.3}", outcome.gbps(), cpu / (outcome.bytes as f64 * 1e-9));
            }
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let program = env::args().next().unwrap_or_default();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["end", rest @ ..] => end(rest),
        [rounds, seconds] => measure(rounds.parse()?, seconds.parse()?),
        _ => Err(format!("usage: {} ROUNDS SECONDS", Path::new(&program).display()).into()),
    }
}
