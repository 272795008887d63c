//! The loop over a capture that all transformations share.

use std::borrow::Cow;
use std::io::Read;

use crate::error::CaptureError;
use crate::file::{Block, BlockKind, Item, Order, ReadError, Reader, options};

/// The program's name and version, as section headers of new files state it.
const USERAPPL: &str = concat!("segue ", env!("CARGO_PKG_VERSION"));

/// Passes every item of `reader` to `take`, and returns the position at which the file is truncated or damaged, if any.
///
/// # Errors
/// [`CaptureError::Read`] for every other failure of the reader, and what `take` returns.
pub(crate) fn each_item<R: Read>(
    reader: &mut Reader<R>,
    mut take: impl FnMut(Item<'_>) -> Result<(), CaptureError>,
) -> Result<Option<ReadError>, CaptureError> {
    loop {
        match reader.next() {
            Ok(None) => return Ok(None),
            Ok(Some(item)) => take(item)?,
            Err(fault @ (ReadError::Cut { .. } | ReadError::Damaged { .. })) => return Ok(Some(fault)),
            Err(error) => return Err(CaptureError::Read(error)),
        }
    }
}

/// Range of the length of the section in a section header block (`draft-ietf-opsawg-pcapng`, section 4.1).
const SECTION_LEN: std::ops::Range<usize> = 16..24;

/// Returns the bytes of a block for a file with other packets: the length of the section becomes unknown.
pub(crate) fn of_other_length<'a>(block: &Block<'a>) -> Cow<'a, [u8]> {
    let mut raw = Cow::Borrowed(block.raw);
    if block.kind == BlockKind::Section && block.raw[SECTION_LEN] != [0xff; 8] {
        raw.to_mut()[SECTION_LEN].fill(0xff);
    }
    raw
}

/// Returns the options of the section header of a pcapng file that is made from a pcap file.
pub(crate) fn section_options() -> Vec<u8> {
    let mut list = Vec::new();
    options::push(&mut list, Order::NATIVE, options::SHB_USERAPPL, USERAPPL.as_bytes());
    list
}
