//! Capture files: pcap and pcapng read and written as a stream ([`file`]).

pub mod file;
