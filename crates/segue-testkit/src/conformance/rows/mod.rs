//! The rows of the table, by subject.

mod ack;
mod ecn;
mod ip;
mod limits;
mod order;
mod shared;
mod tcp;
mod tunnel;
mod udp;

use super::Row;

pub(super) fn all() -> Vec<Row> {
    [tcp::ROWS, ack::ROWS, ip::ROWS, ecn::ROWS, udp::ROWS, limits::ROWS, order::ROWS, tunnel::ROWS].concat()
}
