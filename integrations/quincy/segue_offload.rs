//! The functions of quincy-tun that join and split packets, on segue: the same names, arguments and results.
//! integrations/quincy/run puts this file beside those of quincy-tun, and lets its device call these functions; with
//! `OFFLOAD=own` in the environment they call those of quincy-tun, which is what segue's are measured beside.

use std::cell::RefCell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use segue::easy::{Joiner, Splitter};
use segue::hash::Key;
use segue::packet::Start;
use segue::virtio::{Form, TUN_OFFLOADS, VirtioNet};

use super::OffloadError;
use super::offload::{
    ExpandBuffer, TcpGROTable, UdpGROTable, VIRTIO_NET_HDR_LEN, VirtioNetHdr, their_gso_split, their_handle_gro,
};

/// Whether the functions of quincy-tun do the work.
static IS_OWN: LazyLock<bool> = LazyLock::new(|| std::env::var_os("OFFLOAD").is_some_and(|word| word == "own"));

/// Number of trains that were read but cannot be split, such as those with a source route.
pub static UNREAD: AtomicU64 = AtomicU64::new(0);

/// Joiners and buffers that a thread keeps from batch to batch.
struct Worker {
    /// The joiners for a device that accepts no UDP trains, and for one that does.
    joiners: [Joiner; 2],
    fronts: Vec<u8>,
    payload: Vec<u8>,
    is_merged: Vec<bool>,
}

thread_local! {
    static WORKER: RefCell<Worker> = RefCell::new(Worker {
        joiners: [TUN_OFFLOADS[1], TUN_OFFLOADS[0]].map(|bits| Joiner::tun(random(), bits)),
        fronts: Vec::new(),
        payload: Vec::new(),
        is_merged: Vec::new(),
    });
    static SPLITTER: RefCell<Splitter> = RefCell::new(Splitter::virtio(Form::Basic, Start::Ip));
}

/// Returns random numbers of the system, which seed the hash tables of the standard library.
fn random() -> Key {
    use std::hash::{BuildHasher, RandomState};
    let state = RandomState::new();
    Key([state.hash_one(1), state.hash_one(2)])
}

/// Joins the packets in `bufs`, and lists in `to_write` those to be written. The tables are not used: what segue keeps
/// is in its joiner. A buffer without room after its packet is enlarged.
pub fn handle_gro<B: ExpandBuffer>(
    bufs: &mut [B],
    offset: usize,
    tcp: &mut TcpGROTable,
    udp: &mut UdpGROTable,
    can_udp_gro: bool,
    to_write: &mut Vec<usize>,
) -> Result<(), OffloadError> {
    if *IS_OWN {
        return their_handle_gro(bufs, offset, tcp, udp, can_udp_gro, to_write);
    }
    if let Some(buf) = bufs.iter().find(|buf| offset < VIRTIO_NET_HDR_LEN || offset >= buf.as_ref().len()) {
        return Err(OffloadError::InvalidOffset { offset, buffer_len: buf.as_ref().len() });
    }
    WORKER.with_borrow_mut(|Worker { joiners, fronts, payload, is_merged }| {
        is_merged.clear();
        is_merged.resize(bufs.len(), false);
        fronts.clear();
        payload.clear();
        let mut trains = Vec::new();
        let mut batch = joiners[usize::from(can_udp_gro)].batch();
        bufs.iter().for_each(|buf| _ = batch.push(&buf.as_ref()[offset..]));
        while let Some(train) = batch.pop() {
            let mut sources = train.sources();
            let Some((first, kept)) = sources.next() else { continue };
            let (front, more) = (fronts.len(), payload.len());
            for (number, range) in sources {
                is_merged[number] = true;
                payload.extend_from_slice(&bufs[number].as_ref()[offset..][range]);
            }
            if payload.len() > more {
                fronts.extend_from_slice(train.front());
                trains.push((first, offset + kept.end, front..fronts.len(), more..payload.len()));
            }
        }
        drop(batch);
        bufs.iter_mut().for_each(|buf| buf.as_mut()[offset - VIRTIO_NET_HDR_LEN..offset].fill(0));
        for (first, end, front, more) in trains {
            let front = &fronts[front];
            // Bytes that may follow the payload of the first packet are not part of it.
            bufs[first].buf_resize(end, 0);
            bufs[first].as_mut()[offset - VIRTIO_NET_HDR_LEN..][..front.len()].copy_from_slice(front);
            bufs[first].buf_extend_from_slice(&payload[more]);
        }
        to_write.extend((0..bufs.len()).filter(|&number| !is_merged[number]));
    });
    Ok(())
}

/// Writes the packets of the train `input` to `out_bufs`, all of them. A train that cannot be split is dropped and
/// counted: any user of the host can send one, and an error would end the VPN.
pub fn gso_split<B: AsRef<[u8]> + AsMut<[u8]>>(
    input: &mut [u8],
    hdr: VirtioNetHdr,
    out_bufs: &mut [B],
    sizes: &mut [usize],
    out_offset: usize,
    is_v6: bool,
) -> Result<usize, OffloadError> {
    if *IS_OWN {
        return their_gso_split(input, hdr, out_bufs, sizes, out_offset, is_v6);
    }
    let header = VirtioNet {
        flags: hdr.flags,
        gso_type: hdr.gso_type,
        hdr_len: hdr.hdr_len,
        gso_size: hdr.gso_size,
        csum_start: hdr.csum_start,
        csum_offset: hdr.csum_offset,
        ..VirtioNet::default()
    };
    SPLITTER.with_borrow_mut(|splitter| {
        let Ok(packets) = splitter.read_with(&header, input) else {
            UNREAD.fetch_add(1, Ordering::Relaxed);
            return Ok(0);
        };
        for ((packet, out), size) in packets.iter().zip(&mut *out_bufs).zip(&mut *sizes) {
            let place = out.as_mut().get_mut(out_offset..).unwrap_or_default();
            let small = OffloadError::PacketBufferTooSmall {
                available: place.len(),
                required: packet.len(),
                offset: out_offset,
            };
            *size = packet.write_to(place).map_err(|_| small)?;
        }
        match out_bufs.len().min(sizes.len()) {
            places if places < packets.len() => Err(OffloadError::TooManyGsoSegments { completed_segments: places }),
            _ => Ok(packets.len()),
        }
    })
}
