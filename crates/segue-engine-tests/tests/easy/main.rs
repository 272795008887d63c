//! Tests of the convenience interface (`easy`): a read is split as GSO splits it, a batch is joined as GRO joins it,
//! and no bytes of a finished batch are kept.

mod guest;
mod join;
mod split;

use segue::virtio::{self, Form, VirtioNet};
use segue_testkit::conformance::{GsoKind, Vector};

/// Returns the bytes that a device delivers for a vector: a virtio-net header of the given form, then the frame.
fn unit(vector: &Vector, form: Form) -> Vec<u8> {
    [&header(vector).emit(form)[..form.len()], &vector.frame].concat()
}

fn header(vector: &Vector) -> VirtioNet {
    let gso_type = match vector.gso.kind {
        GsoKind::Tcp4 => virtio::GSO_TCPV4,
        GsoKind::Tcp6 => virtio::GSO_TCPV6,
        GsoKind::Udp => virtio::GSO_UDP_L4,
        GsoKind::Untold => unreachable!("every vector says its kind"),
    };
    VirtioNet {
        flags: virtio::NEEDS_CSUM,
        gso_type: gso_type | if vector.gso.has_cwr { virtio::GSO_ECN } else { 0 },
        hdr_len: vector.header_len as u16,
        gso_size: vector.gso.size as u16,
        csum_start: vector.csum_start as u16,
        csum_offset: vector.csum_offset as u16,
        ..VirtioNet::default()
    }
}
