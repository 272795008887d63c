//! A kernel's GSO of trains that are sent with a virtio-net header.

use std::io;
use std::time::Duration;

use segue_testkit::conformance::{Datagram, GsoKind, Vector, Wrapped, Wrapping};

use super::bpf::Encapsulation;
use super::command::{batch, run};
use super::frame::{PRIMER, tagged};
use super::sys::{Role, Socket, VNET_LEN, index_of};

/// Time after which a frame counts as missing.
const LONGEST: Duration = Duration::from_millis(500);

/// A veth pair without any offload at the sending end.
#[derive(Debug)]
pub struct Gso {
    near: Socket,
    far: Socket,
    device: u32,
    around: Option<(String, Encapsulation)>,
}

impl Gso {
    /// Creates the veth pair `NAME0`, `NAME1` in this network namespace.
    ///
    /// # Errors
    /// Returns what could not be made, and why.
    pub fn new(name: &str) -> Result<Gso, String> {
        let [near, far] = [format!("{name}0"), format!("{name}1")];
        batch(
            "ip",
            &format!(
                "link add {near} mtu 9100 type veth peer name {far} mtu 9100\nlink set {near} up\nlink set {far} up\n"
            ),
        )?;
        run(&["ethtool", "-K", &near, "tx", "off", "tso", "off", "gso", "off", "tx-udp-segmentation", "off"])?;
        let open = |device: &str, role| Socket::open(device, role).map_err(|error| format!("{device}: {error}"));
        let device = index_of(&near).map_err(|error| format!("{near}: {error}"))?;
        let (near, far) = (open(&near, Role::Sends)?, open(&far, Role::ReceivesBare)?);
        carries(&near, &far).map_err(|error| format!("{name}0: {error}"))?;
        Ok(Gso { device, near, far, around: None })
    }

    /// Sends a train for the kernel to segment on transmission; returns the frames that arrive, or `None` if the kernel
    /// does not accept such a train.
    ///
    /// # Errors
    /// Returns errors of the sockets.
    pub fn cut(&self, vector: &Vector) -> io::Result<Option<Vec<Vec<u8>>>> {
        cut(&self.near, &self.far, (vnet_of(vector), &vector.frame), vector.segments.len())
    }

    /// Sends a train whose transport checksum is complete; otherwise the same as [`Gso::cut`].
    ///
    /// # Errors
    /// Returns errors of the sockets.
    pub fn cut_complete(&self, vector: &Vector) -> io::Result<Option<Vec<Vec<u8>>>> {
        let mut vnet = vnet_of(vector);
        vnet[0] = 0;
        cut(&self.near, &self.far, (vnet, &vector.complete()), vector.segments.len())
    }

    /// Attaches an eBPF program to the device that encapsulates each packet on transmission.
    ///
    /// # Errors
    /// Returns errors of bpf(2): this kernel has no such programs, or this process may not load any.
    pub fn wrap(&mut self, wrapping: &Wrapping) -> io::Result<()> {
        match &mut self.around {
            Some((there, _)) if *there == wrapping.name => {}
            Some((there, around)) => {
                around.change(wrapping)?;
                there.clone_from(&wrapping.name);
            }
            around => *around = Some((wrapping.name.clone(), Encapsulation::attach(self.device, wrapping)?)),
        }
        Ok(())
    }

    /// Sends a train that an eBPF program encapsulates; otherwise the same as [`Gso::cut`].
    ///
    /// # Errors
    /// Returns errors of the sockets and of bpf(2).
    pub fn cut_wrapped(&mut self, wrapped: &Wrapped) -> io::Result<Option<Vec<Vec<u8>>>> {
        self.wrap(&wrapped.wrapping)?;
        let inner = (vnet_of(&wrapped.inner), &wrapped.inner.frame[..]);
        cut(&self.near, &self.far, inner, wrapped.segments.len())
    }

    /// Sends a datagram for the kernel to fragment on transmission, as for a guest whose device offers UFO.
    ///
    /// # Errors
    /// Returns errors of the sockets.
    pub fn fragment(&self, datagram: &Datagram) -> io::Result<Option<Vec<Vec<u8>>>> {
        let start = 14 + 4 * datagram.link.tags.len() + datagram.headers;
        // VIRTIO_NET_HDR_GSO_UDP; the size is what a fragment holds after its IP headers.
        let vnet = vnet(3, [start + 8, (datagram.mtu - datagram.front) / 8 * 8, start, 6]);
        cut(&self.near, &self.far, (vnet, &datagram.frame(true)), datagram.by_device_of_linux(&[]).len())
    }
}

/// Sends a frame with a virtio-net header into `near` and returns the frames that arrive at `far`: at least `count`
/// unless some are missing. `None` if the kernel refuses the header, no frames if it drops the train.
pub(super) fn cut(
    near: &Socket,
    far: &Socket,
    (vnet, frame): ([u8; VNET_LEN], &[u8]),
    count: usize,
) -> io::Result<Option<Vec<Vec<u8>>>> {
    while far.receive()?.is_some() {}
    match near.send(vnet, frame) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(None),
        // It took the frame, and could not cut it.
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Some(Vec::new())),
        sent => sent?,
    }
    gather(far, count).map(Some)
}

/// Returns the virtio-net header of a train.
pub(super) fn vnet_of(vector: &Vector) -> [u8; VNET_LEN] {
    let kind = match vector.gso.kind {
        GsoKind::Tcp4 => 1,
        GsoKind::Tcp6 => 4,
        GsoKind::Udp | GsoKind::Untold => 5,
    };
    let cwr = if vector.gso.has_cwr { 0x80 } else { 0 };
    vnet(kind | cwr, [vector.header_len, vector.gso.size, vector.csum_start, vector.csum_offset])
}

/// Returns a virtio-net header with a partial checksum: GSO type, then lengths.
fn vnet(kind: u8, lengths: [usize; 4]) -> [u8; VNET_LEN] {
    let mut vnet = [0; VNET_LEN];
    // VIRTIO_NET_HDR_F_NEEDS_CSUM.
    (vnet[0], vnet[1]) = (1, kind);
    for (field, value) in vnet[2..].chunks_mut(2).zip(lengths) {
        field.copy_from_slice(&u16::try_from(value).unwrap_or(u16::MAX).to_ne_bytes());
    }
    vnet
}

/// Waits until a new pair passes frames: a device drops them until the kernel has noticed its carrier.
pub(super) fn carries(near: &Socket, far: &Socket) -> io::Result<()> {
    for _ in 0..200 {
        match near.send([0; VNET_LEN], &PRIMER) {
            Err(error) if error.raw_os_error() != Some(libc::ENOBUFS) => return Err(error),
            _ => {}
        }
        if far.wait(Duration::from_millis(10))? {
            return Ok(());
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no carrier"))
}

/// Receives frames to the address of the tests: at least `count` unless some are missing.
pub(super) fn gather(far: &Socket, count: usize) -> io::Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    while frames.len() < count && far.wait(LONGEST)? {
        while let Some(received) = far.receive()? {
            // Not what the kernel has to say to all, such as of its IPv6 groups.
            if received.frame.starts_with(&PRIMER[..6]) && !received.frame.starts_with(&PRIMER) {
                frames.push(tagged(received));
            }
        }
    }
    Ok(frames)
}

/// Describes the differences between frames and the expected ones.
pub fn what_differs(came: &[Vec<u8>], expected: &[Vec<u8>]) -> String {
    if came.len() != expected.len() {
        return format!("{} frames, not {}", came.len(), expected.len());
    }
    let frame = came.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
    let (came, expected) = (&came[frame], &expected[frame]);
    let at: Vec<usize> = (0..came.len().min(expected.len())).filter(|&at| came[at] != expected[at]).collect();
    format!("frame {frame}: {} bytes of {}, bytes {:?}", came.len(), expected.len(), &at[..at.len().min(8)])
}
