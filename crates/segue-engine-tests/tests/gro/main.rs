//! Tests of the packets that GRO joins and of those that it does not, one named test for each rule.

mod acks;
mod bench;
mod deliver;
mod flush;
mod ip;
mod jumbo;
mod linux;
mod lro;
mod mismatch;
mod padding;
mod pages;
mod refused;
mod tcp;
mod tunnels;
mod udp;
mod waiting;
