//! WireGuard to one peer on unmodified gotatun: segue implements the traits of its device and of its socket.

pub mod tun;
pub mod udp;

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use gotatun::device::{DeviceBuilder, Peer};
use gotatun::tun::{IpRecv, IpSend};
use gotatun::udp::UdpTransportFactory;
use gotatun::udp::socket::UdpSocketFactory;
use gotatun::x25519::{PublicKey, StaticSecret};
use segue_port::tun::{Tun, TunConfig};

/// MTU of the device: the bytes that a link of 1500 bytes leaves, over IPv6 too.
pub const MTU: u16 = 1420;
/// Bytes of each buffer of the socket, as gotatun's own command sets them; Linux's default holds some 90 datagrams.
const SOCKET_BUFFER: usize = 7 << 20;

/// Device and socket that an endpoint uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Unmodified gotatun: one packet for each call of the device.
    Plain,
    /// segue's device with gotatun's socket.
    Tun,
    /// segue's device, and gotatun's socket with segue's sender.
    TunUdp,
}

impl Form {
    /// All forms, with their names.
    pub const ALL: [(&'static str, Form); 3] = [("plain", Form::Plain), ("tun", Form::Tun), ("tun+udp", Form::TunUdp)];

    /// Returns the form of a name.
    pub fn named(name: &str) -> Option<Form> {
        Form::ALL.iter().find(|(known, _)| *known == name).map(|(_, form)| *form)
    }
}

/// One end of the tunnel: the device's name, the port, the peer, this end's private key and the peer's public one.
#[derive(Clone, Debug)]
pub struct Wireguard {
    /// Name of the TUN device.
    pub device: String,
    /// UDP port to receive on.
    pub port: u16,
    /// Address of the remote end.
    pub peer: SocketAddr,
    /// Private key of the endpoint.
    pub secret: [u8; 32],
    /// Public key of the remote end.
    pub public: [u8; 32],
}

impl Wireguard {
    /// Runs the endpoint until the device is gone.
    pub async fn run(self, form: Form) -> Result<(), Box<dyn Error>> {
        let builder = DeviceBuilder::new();
        let buffer = Some(SOCKET_BUFFER);
        let sockets = UdpSocketFactory { recv_buffer_size: buffer, send_buffer_size: buffer };
        match form {
            Form::Plain => self.start(builder.with_udp(sockets).create_tun(&self.device)?).await,
            Form::Tun => {
                let (inward, outward) = self.device()?;
                self.start(builder.with_udp(sockets).with_ip_pair(inward, outward)).await
            }
            Form::TunUdp => {
                let (inward, outward) = self.device()?;
                self.start(builder.with_udp(udp::Runs(sockets)).with_ip_pair(inward, outward)).await
            }
        }
    }

    fn device(&self) -> Result<(tun::Inward, tun::Outward), Box<dyn Error>> {
        let random = [(); 2].map(|()| RandomState::new().hash_one(()));
        Ok(tun::pair(Tun::open(&TunConfig::ip(&*self.device), random)?, MTU)?)
    }

    async fn start<U, S, R>(&self, builder: DeviceBuilder<U, S, R>) -> Result<(), Box<dyn Error>>
    where
        U: UdpTransportFactory,
        S: IpSend,
        R: IpRecv,
    {
        let mut peer = Peer::new(PublicKey::from(self.public)).with_endpoint(self.peer);
        for all in ["0.0.0.0/0", "::/0"] {
            peer = peer.with_allowed_ip(all.parse()?);
        }
        let secret = StaticSecret::from(self.secret);
        let mut device = builder.with_private_key(secret).with_listen_port(self.port).with_peer(peer).build().await?;
        println!("running");
        device.wait().await;
        Ok(())
    }
}
