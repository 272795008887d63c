//! What GRO joins and what it does not, one named test a rule.

mod bench;
mod flush;
mod ip;
mod linux;
mod mismatch;
mod refused;
mod tcp;
mod tunnels;
mod udp;
