//! Messages of the system calls `sendmmsg`, `recvmmsg` and `writev`, built in reused memory.

mod sys;

pub(crate) use sys::{Outgoing, Received, RecvScratch, SendScratch};
