//! Batches of messages for `sendmmsg`, `recvmmsg` and `writev`.

mod sys;

pub(crate) use sys::{Outgoing, Received, RecvScratch, SendScratch};
