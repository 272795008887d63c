//! Profile `lro`: the fields of the newest segment that replace those in the header of a train.

use super::rules::Mismatch;
use super::stamps::{Stamps, distance, stamps};
use crate::wire::{read_u32, tcp};

/// Checks that acknowledgment number, window and timestamps of a TCP header may replace those of the train, whose
/// newest timestamp is `stamp`: none may go back.
pub(super) fn may_renew(train: &[u8], newest: &[u8], stamp: u32) -> Result<(), Mismatch> {
    let number = |header| read_u32(header, tcp::ACK_NUMBER).unwrap_or(0);
    if distance(number(train), number(newest)) < 0 {
        return Err(Mismatch::AckNumber);
    }
    match (stamps(train), stamps(newest)) {
        (Some(before), Some(after)) if Stamps { value: stamp, ..before } != after => {
            if after.may_follow(Stamps { value: stamp, ..before }) { Ok(()) } else { Err(Mismatch::Options) }
        }
        (None, Some(_)) | (Some(_), None) => Err(Mismatch::Options),
        _ => Ok(()),
    }
}

/// Writes acknowledgment number, window and timestamp echo of the newest segment into the header of a train. The train
/// keeps the timestamp of its first segment: a receiver echoes the earliest one that it has not answered yet (RFC 7323,
/// section 4.3). Returns the newest timestamp.
pub(super) fn renew(train: &mut [u8], newest: &[u8]) -> u32 {
    train[tcp::ACK_NUMBER..][..4].copy_from_slice(&newest[tcp::ACK_NUMBER..][..4]);
    train[tcp::WINDOW..][..2].copy_from_slice(&newest[tcp::WINDOW..][..2]);
    let Some(stamps) = stamps(newest) else { return 0 };
    train[tcp::ECHO..][..4].copy_from_slice(&stamps.echo.to_be_bytes());
    stamps.value
}
