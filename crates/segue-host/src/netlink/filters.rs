//! BPF programs at the hooks of interfaces as filters (cls_bpf, clsact), for kernels that have no tcx links.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption,
};

use super::Netlink;

/// Queueing discipline that has the hooks and their filters.
const CLSACT: &str = "clsact";
/// Protocol number of a filter for all packets (`ETH_P_ALL`), in network byte order.
const ANY: u32 = 3_u16.to_be() as u32;

/// Priority of the added filters: after those of other programs, whose default is a lower number.
const PRIORITY: u32 = 0xff00;

/// A hook of an interface to which filters are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Received packets, before the network layer.
    Ingress,
    /// Packets to send, before the queueing discipline.
    Egress,
}

impl Hook {
    fn parent(self) -> TcHandle {
        let minor = match self {
            Hook::Ingress => TcHandle::MIN_INGRESS,
            Hook::Egress => TcHandle::MIN_EGRESS,
        };
        TcHandle { minor, ..TcHandle::CLSACT }
    }
}

/// A filter of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    header: TcHeader,
    /// The kind of the filter, such as `bpf` or `u32`.
    pub kind: String,
    /// The name of a BPF program, as set by the program that added it.
    pub name: String,
    /// ID of the BPF program; 0 for filters of other kinds.
    pub program: u32,
}

impl Filter {
    fn read(message: TcMessage) -> Option<Filter> {
        let mut filter = Filter { header: message.header, kind: String::new(), name: String::new(), program: 0 };
        let mut options = Vec::new();
        for attribute in message.attributes {
            match attribute {
                TcAttribute::Kind(kind) => filter.kind = kind,
                TcAttribute::Options(all) => options = all,
                _ => {}
            }
        }
        for option in options {
            match option {
                TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => filter.name = name,
                TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => filter.program = id,
                _ => {}
            }
        }
        // One message is of the priority, which has no program.
        (filter.header.handle != TcHandle::UNSPEC).then_some(filter)
    }
}

impl Netlink {
    /// Returns the filters at the hooks of the link with the given index.
    pub fn filters(&mut self, index: u32) -> io::Result<Vec<Filter>> {
        let mut found = Vec::new();
        for hook in [Hook::Ingress, Hook::Egress] {
            let mut request = TcMessage::with_index(index.cast_signed());
            request.header.parent = hook.parent();
            found.extend(self.dump(&RouteNetlinkMessage::GetTrafficFilter(request), &mut |message| match message {
                RouteNetlinkMessage::NewTrafficFilter(message) => Filter::read(message),
                _ => None,
            })?);
        }
        Ok(found)
    }

    /// Adds a program, whose result is the action on the packet, to a hook of the link with the given index, after the
    /// existing filters. It stays until it is removed, or the link is.
    pub fn add_filter(&mut self, index: u32, hook: Hook, program: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let mut hooks = TcMessage::with_index(index.cast_signed());
        hooks.header.parent = TcHandle::CLSACT;
        hooks.header.handle = TcHandle { minor: 0, ..TcHandle::CLSACT };
        hooks.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
        match self.tell(RouteNetlinkMessage::NewQueueDiscipline(hooks), NLM_F_CREATE | NLM_F_EXCL) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            other => other?,
        }
        let mut message = TcMessage::with_index(index.cast_signed());
        message.header.parent = hook.parent();
        message.header.info = PRIORITY << 16 | ANY;
        let options = [
            TcFilterBpfOption::ProgFd(program.as_raw_fd().cast_unsigned()),
            TcFilterBpfOption::ProgName(name.to_owned()),
            TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
        ];
        message.attributes = vec![
            TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
            TcAttribute::Options(options.into_iter().map(TcOption::Bpf).collect()),
        ];
        self.tell(RouteNetlinkMessage::NewTrafficFilter(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Removes a filter. The queueing discipline of the filters stays, which other software may use.
    pub fn remove_filter(&mut self, filter: &Filter) -> io::Result<()> {
        let message = TcMessage::from_parts(filter.header.clone(), vec![TcAttribute::Kind(filter.kind.clone())]);
        self.tell(RouteNetlinkMessage::DelTrafficFilter(message), 0)
    }
}
