//! `segue-gotatun end FORM NAME PORT PEER:PORT SECRET PUBLIC` runs one end on the device NAME, as root: FORM is
//! `plain`, `tun` or `tun+udp`, SECRET a file with this end's private key, PUBLIC the peer's public key, in hexadecimal
//! digits.
//!
//! `segue-gotatun figures ROUNDS SECONDS` measures the forms in turn between two hosts, and prints a line for each
//! measurement: form, load, Gbit/s and CPU seconds per gigabyte. Its load of datagrams are the commands
//! `segue-gotatun send ADDRESS:PORT SECONDS` and `segue-gotatun receive ADDRESS:PORT`.

mod datagrams;
mod figures;

use std::error::Error;

use segue_gotatun::{Form, Wireguard};

fn key(text: &str) -> Result<[u8; 32], Box<dyn Error>> {
    let byte = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2).unwrap_or("none"), 16);
    let bytes = (0..32).map(byte).collect::<Result<Vec<_>, _>>()?;
    bytes.try_into().map_err(|_| "a key has 64 digits".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["end", form, device, port, peer, secret, public] => {
            let end = Wireguard {
                device: (*device).into(),
                port: port.parse()?,
                peer: peer.parse()?,
                secret: key(std::fs::read_to_string(secret)?.trim())?,
                public: key(public)?,
            };
            let form = Form::named(form).ok_or("FORM is plain, tun or tun+udp")?;
            tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(end.run(form))
        }
        ["figures", rounds, seconds] => figures::run(rounds.parse()?, seconds.parse()?),
        ["send", to, seconds] => datagrams::send(to.parse()?, seconds.parse()?),
        ["receive", at] => datagrams::receive(at.parse()?),
        _ => Err("usage: segue-gotatun end FORM NAME PORT PEER:PORT SECRET PUBLIC | figures ROUNDS SECONDS".into()),
    }
}
