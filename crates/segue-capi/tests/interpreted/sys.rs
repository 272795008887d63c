//! Calls of the C interface, with structs of the header's layout, which tests/c.rs compares with those of C.
#![allow(unsafe_code, reason = "the functions of the C interface take pointers")]

use std::mem::offset_of;
use std::ptr::{null, null_mut};

use segue_capi::abi::*;
use segue_capi::chain::abi::*;
use segue_capi::structs::SegueOut;

#[repr(C)]
struct Out {
    base: *mut u8,
    room: usize,
    len: usize,
}

#[repr(C)]
struct Buf {
    base: *const u8,
    len: usize,
    csum: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Piece {
    base: *const u8,
    len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Train {
    first: usize,
    count: usize,
    len: usize,
    segments: usize,
}

#[repr(C)]
struct Chain {
    pieces: *const Piece,
    count: usize,
    csum: u32,
}

#[repr(C)]
struct JoinerConfig {
    size: usize,
    key: [u64; 2],
    offloads: u32,
    header_len: u32,
    ethernet: u32,
    profile: u32,
}

#[repr(C)]
struct TunnelConfig {
    size: usize,
    mode: u32,
    carrier: u32,
    version: u32,
    port: u16,
    local: [u8; 16],
    remote: [u8; 16],
    key: [u64; 2],
}

/// A packet and the state of its checksum.
pub(crate) struct Packet<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) csum: u32,
}

/// Returns the bytes of a packet's pieces in one vector.
fn gathered(train: &Train, pieces: &[Piece]) -> Vec<u8> {
    let of_train = &pieces[train.first..train.first + train.count];
    // SAFETY: the pieces lie in what was passed, which lives, or in the object's memory, until its next call.
    let parts = of_train.iter().map(|piece| unsafe { std::slice::from_raw_parts(piece.base, piece.len) });
    parts.flatten().copied().collect()
}

/// Returns a packet as pieces of at most `size` bytes.
fn cut(bytes: &[u8], size: usize) -> Vec<Piece> {
    bytes.chunks(size).map(|part| Piece { base: part.as_ptr(), len: part.len() }).collect()
}

/// Memory for packets, with the structs that describe it to C.
struct Places {
    memory: Vec<Vec<u8>>,
    outs: Vec<Out>,
}

impl Places {
    fn new(count: usize, room: usize) -> Places {
        let mut memory = vec![vec![0; room]; count];
        let outs = memory.iter_mut().map(|bytes| Out { base: bytes.as_mut_ptr(), room, len: 0 }).collect();
        Places { memory, outs }
    }

    fn pointer(&mut self) -> *mut SegueOut {
        self.outs.as_mut_ptr().cast()
    }

    fn packets(self, count: isize, offset: usize) -> Result<Vec<Vec<u8>>, isize> {
        let count = usize::try_from(count).map_err(|_| count)?;
        let lens: Vec<usize> = self.outs.iter().map(|out| out.len).collect();
        Ok(self
            .memory
            .into_iter()
            .zip(lens)
            .take(count)
            .map(|(bytes, len)| bytes[offset..offset + len].to_vec())
            .collect())
    }
}

pub(crate) struct Splitter(*mut SegueSplitter);

impl Splitter {
    pub(crate) fn new(header_len: usize) -> Splitter {
        let made = segue_splitter_new(header_len, 0);
        assert!(!made.is_null() && segue_splitter_new(7, 0).is_null());
        Splitter(made)
    }

    pub(crate) fn split(
        &mut self,
        unit: &[u8],
        count: usize,
        room: usize,
        offset: usize,
    ) -> Result<Vec<Vec<u8>>, isize> {
        let mut places = Places::new(count, room);
        // SAFETY: the pointers and numbers are those of live vectors.
        let made = unsafe { segue_split(self.0, unit.as_ptr(), unit.len(), places.pointer(), count, offset) };
        places.packets(made, offset)
    }

    pub(crate) fn split_with(
        &mut self,
        header: &[u8],
        packet: &[u8],
        count: usize,
        room: usize,
    ) -> Result<Vec<Vec<u8>>, isize> {
        let mut places = Places::new(count, room);
        let (head, body) = (header.as_ptr(), packet.as_ptr());
        // SAFETY: as above.
        let made =
            unsafe { segue_split_with(self.0, head, header.len(), body, packet.len(), places.pointer(), count, 0) };
        places.packets(made, 0)
    }

    pub(crate) fn split_chain(
        &mut self,
        header: &[u8],
        packet: &[u8],
        size: usize,
        count: usize,
    ) -> Result<Vec<Vec<u8>>, isize> {
        let given = cut(packet, size);
        let chain = Chain { pieces: given.as_ptr(), count: given.len(), csum: 0 };
        let mut packets = vec![Train { first: 0, count: 0, len: 0, segments: 0 }; count];
        let mut pieces = vec![Piece { base: null(), len: 0 }; given.len() + 2 * count];
        let (to, parts) = (packets.as_mut_ptr().cast(), pieces.as_mut_ptr().cast());
        let (head, chain) = (header.as_ptr(), (&raw const chain).cast());
        // SAFETY: the pointers and numbers are those of live vectors and of a live chain.
        let made =
            unsafe { segue_split_chain(self.0, head, header.len(), chain, to, packets.len(), parts, pieces.len()) };
        let made = usize::try_from(made).map_err(|_| made)?;
        Ok(packets[..made].iter().map(|packet| gathered(packet, &pieces)).collect())
    }
}

impl Drop for Splitter {
    fn drop(&mut self) {
        // SAFETY: it was made by the library and is not used again.
        unsafe { segue_splitter_free(self.0) };
    }
}

pub(crate) struct Joiner(*mut SegueJoiner);

impl Joiner {
    pub(crate) fn new(header_len: u32) -> Joiner {
        Joiner::of([1, 2], header_len, 0).unwrap()
    }

    /// Creates a joiner with this key and profile, without a header for plain packets; `None` where the library refuses
    /// them.
    pub(crate) fn of(key: [u64; 2], header_len: u32, profile: u32) -> Option<Joiner> {
        let size = size_of::<JoinerConfig>();
        // SEGUE_PLAIN, else TUN_F_CSUM, TUN_F_TSO4 and TUN_F_TSO6.
        let offloads = if header_len == 0 { u32::MAX } else { 7 };
        let config = JoinerConfig { size, key, offloads, header_len, ethernet: 0, profile };
        // SAFETY: a live configuration of the size that it says.
        let made = unsafe { segue_joiner_new((&raw const config).cast()) };
        (!made.is_null()).then_some(Joiner(made))
    }

    pub(crate) fn join(&mut self, batch: &[Packet<'_>]) -> Result<Vec<Vec<u8>>, isize> {
        let buf = |packet: &Packet<'_>| Buf { base: packet.bytes.as_ptr(), len: packet.bytes.len(), csum: packet.csum };
        let bufs: Vec<Buf> = batch.iter().map(buf).collect();
        let mut trains = vec![Train { first: 0, count: 0, len: 0, segments: 0 }; bufs.len()];
        let mut pieces = vec![Piece { base: null(), len: 0 }; 2 * bufs.len()];
        let (to, parts) = (trains.as_mut_ptr().cast(), pieces.as_mut_ptr().cast());
        // SAFETY: the pointers and numbers are those of live vectors.
        let made =
            unsafe { segue_join(self.0, bufs.as_ptr().cast(), bufs.len(), to, trains.len(), parts, pieces.len()) };
        let made = usize::try_from(made).map_err(|_| made)?;
        Ok(trains[..made].iter().map(|train| gathered(train, &pieces)).collect())
    }

    pub(crate) fn join_chains(&mut self, batch: &[Packet<'_>], size: usize) -> Result<Vec<Vec<u8>>, isize> {
        let cut: Vec<Vec<Piece>> = batch.iter().map(|packet| cut(packet.bytes, size)).collect();
        let chain = |(pieces, packet): (&Vec<Piece>, &Packet<'_>)| Chain {
            pieces: pieces.as_ptr(),
            count: pieces.len(),
            csum: packet.csum,
        };
        let chains: Vec<Chain> = cut.iter().zip(batch).map(chain).collect();
        let mut trains = vec![Train { first: 0, count: 0, len: 0, segments: 0 }; chains.len()];
        let mut pieces = vec![Piece { base: null(), len: 0 }; chains.len() + cut.iter().map(Vec::len).sum::<usize>()];
        let (to, parts) = (trains.as_mut_ptr().cast(), pieces.as_mut_ptr().cast());
        let (from, count) = (chains.as_ptr().cast(), chains.len());
        // SAFETY: the pointers and numbers are those of live vectors.
        let made = unsafe { segue_join_chains(self.0, from, count, to, trains.len(), parts, pieces.len()) };
        let made = usize::try_from(made).map_err(|_| made)?;
        Ok(trains[..made].iter().map(|train| gathered(train, &pieces)).collect())
    }

    /// Joins packets in their memory, and returns what is to be written, from the header of `header_len` bytes on.
    pub(crate) fn join_in_place(
        &mut self,
        packets: &[Vec<u8>],
        header_len: usize,
        offset: usize,
        room: usize,
    ) -> Result<Vec<Vec<u8>>, isize> {
        let mut places = Places::new(packets.len(), room);
        for ((bytes, out), packet) in places.memory.iter_mut().zip(&mut places.outs).zip(packets) {
            bytes[offset..offset + packet.len()].copy_from_slice(packet);
            (out.base, out.len) = (bytes.as_mut_ptr(), packet.len());
        }
        let mut to_write = vec![0; packets.len()];
        let (outs, list) = (places.pointer(), to_write.as_mut_ptr());
        // SAFETY: the pointers and numbers are those of live vectors.
        let made = unsafe { segue_join_in_place(self.0, outs, packets.len(), offset, list, to_write.len()) };
        let made = usize::try_from(made).map_err(|_| made)?;
        let one = |number: &usize| {
            let end = offset + places.outs[*number].len;
            places.memory[*number][offset - header_len..end].to_vec()
        };
        Ok(to_write[..made].iter().map(one).collect())
    }
}

impl Drop for Joiner {
    fn drop(&mut self) {
        // SAFETY: it was made by the library and is not used again.
        unsafe { segue_joiner_free(self.0) };
    }
}

pub(crate) struct Tunnel(*mut SegueTunnel);

impl Tunnel {
    /// End of the fields of the first configuration.
    pub(crate) const FIELDS: usize = offset_of!(TunnelConfig, remote) + 16;
    /// Size of the first configuration in C.
    pub(crate) const FIRST: usize = Tunnel::FIELDS.next_multiple_of(align_of::<usize>());

    pub(crate) fn new(mode: u32, carrier: u32, addresses: [[u8; 4]; 2]) -> Tunnel {
        Tunnel::with_key(mode, carrier, addresses, Some([1, 2]))
    }

    /// Creates a tunnel with a key, or with a configuration that ends in front of it.
    pub(crate) fn with_key(mode: u32, carrier: u32, addresses: [[u8; 4]; 2], key: Option<[u64; 2]>) -> Tunnel {
        let size = if key.is_some() { size_of::<TunnelConfig>() } else { Tunnel::FIRST };
        // What lies behind an old configuration is not its caller's.
        Tunnel::of_size(size, [mode, carrier], addresses, key.unwrap_or([7, 7])).unwrap()
    }

    /// Creates a tunnel with a configuration of this size; `None` where the library refuses it.
    pub(crate) fn of_size(
        size: usize,
        [mode, carrier]: [u32; 2],
        addresses: [[u8; 4]; 2],
        key: [u64; 2],
    ) -> Option<Tunnel> {
        let wide = |address: [u8; 4]| std::array::from_fn(|at| address.get(at).copied().unwrap_or(0));
        let [local, remote] = addresses.map(wide);
        let config = TunnelConfig { size, mode, carrier, version: 4, port: 0, local, remote, key };
        // SAFETY: a live configuration, at least of the size that it says.
        let made = unsafe { segue_tunnel_new((&raw const config).cast()) };
        (!made.is_null()).then_some(Tunnel(made))
    }

    pub(crate) fn encap(&mut self, unit: &[u8], count: usize, room: usize) -> Result<Vec<Vec<u8>>, isize> {
        let mut places = Places::new(count, room);
        // SAFETY: the pointers and numbers are those of live vectors.
        let made = unsafe { segue_encap(self.0, unit.as_ptr(), unit.len(), places.pointer(), count) };
        places.packets(made, 0)
    }

    pub(crate) fn decap(&mut self, packet: &[u8], room: usize) -> Result<Vec<u8>, isize> {
        let mut places = Places::new(1, room);
        // SAFETY: as above.
        let made = unsafe { segue_decap(self.0, packet.as_ptr(), packet.len(), places.pointer()) };
        Ok(places.packets(made, 0)?.remove(0))
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        // SAFETY: it was made by the library and is not used again.
        unsafe { segue_tunnel_free(self.0) };
    }
}

pub(crate) fn sum(bytes: &[u8]) -> u16 {
    // SAFETY: the pointer and the length are those of a slice.
    unsafe { segue_sum(bytes.as_ptr(), bytes.len()) }
}

pub(crate) fn sum_copy(bytes: &[u8]) -> (Vec<u8>, u16) {
    let mut to = vec![0; bytes.len()];
    // SAFETY: two slices of one length.
    let sum = unsafe { segue_sum_copy(to.as_mut_ptr(), bytes.as_ptr(), bytes.len()) };
    (to, sum)
}

pub(crate) fn pseudo_v4([from, to]: [[u8; 4]; 2], protocol: u8, len: usize) -> u16 {
    // SAFETY: four bytes each.
    unsafe { segue_pseudo(4, from.as_ptr(), to.as_ptr(), protocol, len) }
}

/// Calls every function of the interface with null pointers for all arguments.
pub(crate) fn nothing() {
    // SAFETY: null is refused by each, and the free functions take it.
    unsafe {
        assert_eq!(segue_sum(null(), 4), 0);
        assert_eq!(segue_sum_copy(null_mut(), null(), 4), 0);
        assert_eq!(segue_pseudo(6, null(), null(), 6, 4), 0);
        assert!(segue_split(null_mut(), null(), 4, null_mut(), 1, 0) < 0);
        assert!(segue_split_with(null_mut(), null(), 4, null(), 1, null_mut(), 1, 0) < 0);
        assert!(segue_split_chain(null_mut(), null(), 0, null(), null_mut(), 0, null_mut(), 0) < 0);
        assert!(segue_join_chains(null_mut(), null(), 1, null_mut(), 1, null_mut(), 1) < 0);
        assert!(segue_joiner_new(null()).is_null() && segue_tunnel_new(null()).is_null());
        assert!(segue_join(null_mut(), null(), 1, null_mut(), 1, null_mut(), 1) < 0);
        assert!(segue_join_in_place(null_mut(), null_mut(), 1, 0, null_mut(), 1) < 0);
        assert!(segue_encap(null_mut(), null(), 4, null_mut(), 1) < 0);
        assert!(segue_decap(null_mut(), null(), 4, null_mut()) < 0);
        segue_splitter_free(null_mut());
        segue_joiner_free(null_mut());
        segue_tunnel_free(null_mut());
    }
}
