//! The forms measured in turn, with TCP of iperf3 and with small datagrams, between two hosts on a link without
//! offloads.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use segue_gotatun::Form;
use segue_lab::load::{self, Load, Style};
use segue_lab::{Cpu, Family, Host, LinkForm, Peer, Proto, connect, reach};

use crate::datagrams;

#[path = "../tests/common/mod.rs"]
mod common;

/// Name and number of the flows of TCP.
const LOADS: [(&str, u32); 3] = [("1 flow", 1), ("8 flows", 8), ("64 flows", 64)];

pub fn run(rounds: u32, seconds: u32) -> Result<(), Box<dyn Error>> {
    let cpu = Arc::new(Cpu::new());
    let mut hosts = [Host::new("a")?, Host::new("b")?];
    for host in &mut hosts {
        host.account(&cpu);
        // BBR, the default of some machines, paces, with a timer for each train.
        host.set_sysctl("ipv4/tcp_congestion_control", "reno")?;
    }
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
        for (what, parallel) in LOADS {
            for ((name, _), net) in Form::ALL.into_iter().zip(1..) {
                let (to, proto, style) = (Peer::B.address(net, Family::V4), Proto::Tcp, Style::default());
                let outcome = load::run(&Load { client: a, server: b, to, proto, seconds, parallel, style })?;
                println!("{name}: {what}: {:.4} {:.3}", outcome.gbps(), outcome.cpu_s_per_gb().unwrap_or(0.0));
            }
        }
        for ((name, _), net) in Form::ALL.into_iter().zip(1..) {
            let (gbps, cpu) = datagrams::measure(a, b, Peer::B.address(net, Family::V4), seconds, &cpu)?;
            println!("{name}: datagrams of {}: {gbps:.4} {cpu:.3}", datagrams::LEN);
        }
    }
    Ok(())
}
