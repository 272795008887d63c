//! Helpers of all rows: the constructor of a row, TCP flags, and setters of header fields.

use crate::build::{Ip, L4, Tcp, V4, V6};
use crate::conformance::{Feature, Gives, On, Row, Script};

pub(super) const fn row(name: &'static str, on: On, gives: Gives, make: fn(&mut Script)) -> Row {
    Row { name, on, make, gives, in_kernels: true, needs: None }
}

impl Row {
    /// Marks a row that cannot be replayed to a kernel over a veth pair.
    pub(super) const fn not_in_kernels(self) -> Row {
        Row { in_kernels: false, ..self }
    }

    /// Marks a row for which a kernel needs a feature in addition to that of its carrier.
    pub(super) const fn needs(self, feature: Feature) -> Row {
        Row { needs: Some(feature), ..self }
    }
}

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const URG: u8 = 0x20;
pub(super) const ECE: u8 = 0x40;
pub(super) const CWR: u8 = 0x80;

pub(super) fn tcp(l4: &mut L4) -> &mut Tcp {
    match l4 {
        L4::Tcp(tcp) => tcp,
        _ => panic!("the row is for TCP"),
    }
}

pub(super) fn v4(ip: &mut Ip) -> &mut V4 {
    match ip {
        Ip::V4(ip) => ip,
        Ip::V6(_) => panic!("the row is for IPv4"),
    }
}

pub(super) fn v6(ip: &mut Ip) -> &mut V6 {
    match ip {
        Ip::V6(ip) => ip,
        Ip::V4(_) => panic!("the row is for IPv6"),
    }
}

pub(super) fn set_tos(ip: &mut Ip, tos: u8) {
    match ip {
        Ip::V4(ip) => ip.tos = tos,
        Ip::V6(ip) => ip.class = tos,
    }
}

pub(super) fn set_ttl(ip: &mut Ip, ttl: u8) {
    match ip {
        Ip::V4(ip) => ip.ttl = ttl,
        Ip::V6(ip) => ip.hop_limit = ttl,
    }
}
