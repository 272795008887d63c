//! The table.

mod ack;
mod ecn;
mod ip;
mod limits;
mod order;
mod tcp;
mod tunnel;
mod udp;

use super::{Feature, Gives, On, Row, Script};
use crate::build::{Ip, L4, Tcp, V4, V6};

pub(super) fn all() -> Vec<Row> {
    [tcp::ROWS, ack::ROWS, ip::ROWS, ecn::ROWS, udp::ROWS, limits::ROWS, order::ROWS, tunnel::ROWS].concat()
}

const fn row(name: &'static str, on: On, gives: Gives, make: fn(&mut Script)) -> Row {
    Row { name, on, make, gives, in_kernels: true, needs: None }
}

impl Row {
    /// A row that no kernel behind a veth pair can be shown.
    const fn not_in_kernels(self) -> Row {
        Row { in_kernels: false, ..self }
    }

    /// A row for which a kernel must have more than its carrier needs.
    const fn needs(self, feature: Feature) -> Row {
        Row { needs: Some(feature), ..self }
    }
}

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const URG: u8 = 0x20;
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

fn tcp(l4: &mut L4) -> &mut Tcp {
    match l4 {
        L4::Tcp(tcp) => tcp,
        _ => panic!("the row is for TCP"),
    }
}

fn v4(ip: &mut Ip) -> &mut V4 {
    match ip {
        Ip::V4(ip) => ip,
        Ip::V6(_) => panic!("the row is for IPv4"),
    }
}

fn v6(ip: &mut Ip) -> &mut V6 {
    match ip {
        Ip::V6(ip) => ip,
        Ip::V4(_) => panic!("the row is for IPv6"),
    }
}

fn set_tos(ip: &mut Ip, tos: u8) {
    match ip {
        Ip::V4(ip) => ip.tos = tos,
        Ip::V6(ip) => ip.class = tos,
    }
}

fn set_ttl(ip: &mut Ip, ttl: u8) {
    match ip {
        Ip::V4(ip) => ip.ttl = ttl,
        Ip::V6(ip) => ip.hop_limit = ttl,
    }
}
