//! Command `segue-boringtun NAME LOCAL:PORT PEER:PORT SECRET PUBLIC`, which runs one end on the device NAME, as root;
//! SECRET is the file with this end's private key, PUBLIC the peer's public key, 32 bytes each, in hexadecimal digits.

use std::error::Error;
use std::hash::{BuildHasher, RandomState};

use boringtun::noise::Tunn;
use segue_boringtun::Wireguard;
use segue_port::tun::{Tun, TunConfig};

fn key(text: &str) -> Result<[u8; 32], Box<dyn Error>> {
    let byte = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2).unwrap_or("none"), 16);
    let bytes = (0..32).map(byte).collect::<Result<Vec<_>, _>>()?;
    bytes.try_into().map_err(|_| "a key has 64 digits".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let [name, local, peer, secret, public] = <[String; 5]>::try_from(std::env::args().skip(1).collect::<Vec<_>>())
        .map_err(|_| "usage: segue-boringtun NAME LOCAL:PORT PEER:PORT SECRET PUBLIC")?;
    let random = [(); 2].map(|()| RandomState::new().hash_one(()));
    let tun = Tun::open(&TunConfig::ip(name), random)?;
    let secret = key(std::fs::read_to_string(secret)?.trim())?.into();
    let tunn = Tunn::new(secret, key(&public)?.into(), None, None, random[0] as u32 >> 8, None);
    let mut end = Wireguard::new(tun, std::net::UdpSocket::bind(local)?, peer.parse()?, tunn);
    loop {
        end.turn()?;
    }
}
