//! Splits a packet of a capture that exceeds the MTU into the IP fragments that its sender would have sent.

use segue::gso::{self, Fragment, Frames, Limits};
use segue::packet::{LayerCsum, Packet, Tunnels};
use segue::reason::Reason;

use crate::checksums::{Finding, Layer, Verdict};
use crate::frame::Frame;

/// Appends the fragments of the innermost packet of `data`, a whole record of link type `link`, to `frames`. All
/// checksums must be complete already.
///
/// # Errors
/// The name of the reason why the packet must stay whole, such as a "don't fragment" flag.
pub(crate) fn cut(
    link: u16,
    data: &[u8],
    mtu: usize,
    tunnels: &Tunnels,
    findings: &mut Vec<Finding>,
    frames: &mut Frames,
) -> Result<(), &'static str> {
    let frame = Frame::open(link, data, tunnels, mtu).ok_or(gso::Refusal::Layout.name())?;
    frame.judge(findings);
    let mut packet: Packet<&[u8]> = frame.packet();
    for (level, layer) in packet.offload.layers_mut().iter_mut().enumerate() {
        // Outer checksums are computed anew for each fragment, which must not turn a wrong one into a right one.
        let is_good = |of: Layer| {
            let mut all = findings.iter().filter(|f| f.is_outer && f.level == level && f.layer == of);
            all.all(|f| f.verdict == Verdict::Good)
        };
        if layer.udp == LayerCsum::Unknown && is_good(Layer::Udp) {
            layer.udp = LayerCsum::Done;
        }
        if layer.gre == LayerCsum::Unknown && (is_good(Layer::Gre) || layer.remote.is_some()) {
            layer.gre = LayerCsum::Done;
        }
    }
    let limits = Limits { mtu, fragment: Fragment::Sender { clears_df: false }, ..Limits::NONE };
    gso::split_linear(&packet, &limits, frames).map(|_| ()).map_err(Reason::name)
}
