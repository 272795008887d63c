//! Errors of the capture transformations.

use std::fmt;
use std::io;

use crate::file::ReadError;

/// The reason why a transformation of a capture failed.
///
/// A file that is cut or damaged is no failure: it is transformed up to the fault, which the report names.
#[derive(Debug)]
#[non_exhaustive]
pub enum CaptureError {
    /// The input could not be read.
    Read(ReadError),
    /// The output could not be written, or pcap cannot represent it: then
    /// [`SecondLinkType`](crate::file::SecondLinkType) or [`DifferentHeader`](crate::file::DifferentHeader) is inside
    /// the error.
    Write(io::Error),
    /// The input has no note of a merge that could be undone.
    NothingToUndo,
    /// The merge dropped acknowledgments, so that it cannot be undone.
    Swallowed {
        /// Index of the first packet that replaces others.
        packet: u64,
    },
    /// Comments were requested for a pcap file, which cannot hold them.
    NoComments,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::Read(error) => write!(f, "cannot read the capture: {error}"),
            CaptureError::Write(error) => write!(f, "cannot write the capture: {error}"),
            CaptureError::NothingToUndo => f.write_str("no packet carries the note of a merge"),
            CaptureError::Swallowed { packet } => {
                write!(f, "packet {packet} stands for acknowledgments that the merge left out")
            }
            CaptureError::NoComments => f.write_str("pcap has no place for comments"),
        }
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CaptureError::Read(error) => Some(error),
            CaptureError::Write(error) => Some(error),
            CaptureError::NothingToUndo | CaptureError::Swallowed { .. } | CaptureError::NoComments => None,
        }
    }
}
