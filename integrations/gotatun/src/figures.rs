//! The forms measured in turn, with loads of iperf3 between two hosts on a link without offloads.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use segue_gotatun::Form;
use segue_lab::load::{self, Load, Style};
use segue_lab::{Cpu, Family, Host, LinkForm, Peer, Proto, connect, reach};

#[path = "../tests/common/mod.rs"]
mod common;

/// Name, protocol, flows and length of a datagram.
const LOADS: [(&str, Proto, u32, u32); 4] = [
    ("1 flow", Proto::Tcp, 1, 0),
    ("8 flows", Proto::Tcp, 8, 0),
    ("64 flows", Proto::Tcp, 64, 0),
    ("datagrams of 200", Proto::Udp, 1, 200),
];

pub fn run(rounds: u32, seconds: u32) -> Result<(), Box<dyn Error>> {
    let cpu = Arc::new(Cpu::new());
    let mut hosts = [Host::new("a")?, Host::new("b")?];
    hosts.iter_mut().for_each(|host| host.account(&cpu));
    let [a, b] = &hosts;
    connect(a, b, LinkForm::Nic)?;
    let mut ends = Vec::new();
    for ((_, form), net) in Form::ALL.into_iter().zip(1..) {
        for (host, end) in [(a, Peer::A), (b, Peer::B)] {
            ends.push(common::start(host, end, net, form)?);
        }
        let [from, to] = [Peer::A, Peer::B].map(|end| end.address(net, Family::V4));
        reach((a, from), (b, to), Duration::from_secs(30))?;
    }
    for _ in 0..rounds {
        for (what, proto, parallel, datagram) in LOADS {
            for ((name, _), net) in Form::ALL.into_iter().zip(1..) {
                let style = Style { datagram, ..Style::default() };
                let to = Peer::B.address(net, Family::V4);
                let outcome = load::run(&Load { client: a, server: b, to, proto, seconds, parallel, style })?;
                println!("{name}: {what}: {:.4} {:.3}", outcome.gbps(), outcome.cpu_s_per_gb().unwrap_or(0.0));
            }
        }
    }
    Ok(())
}
