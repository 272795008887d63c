//! Profile `lro`: the fields of the newest segment that replace those in the header of a train.

use super::rules::Mismatch;
use super::stamps::{Stamps, distance, stamps};
use crate::wire::{read_u32, tcp};

/// Checks that acknowledgment number, window and timestamps of a TCP header may replace those of the train, whose
/// newest timestamp is `stamp`: none may be older.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a header with an acknowledgment number and, if there are any, timestamps.
    fn header(number: u32, stamps: Option<(u32, u32)>) -> Vec<u8> {
        let mut header = vec![0; if stamps.is_some() { tcp::STAMPED_LEN } else { tcp::MIN_LEN }];
        header[tcp::ACK_NUMBER..][..4].copy_from_slice(&number.to_be_bytes());
        header[tcp::WINDOW..][..2].copy_from_slice(&[number as u8, 7]);
        if let Some((value, echo)) = stamps {
            header[tcp::OPTIONS..tcp::STAMP].copy_from_slice(&tcp::STAMPED);
            header[tcp::STAMP..][..4].copy_from_slice(&value.to_be_bytes());
            header[tcp::ECHO..][..4].copy_from_slice(&echo.to_be_bytes());
        }
        header
    }

    /// Tests that a segment with an older acknowledgment number or timestamp does not join (RFC 9293, section 3.10.7.4;
    /// RFC 7323, section 5.3). The train's newest TSval is 20, whatever its header says.
    #[test]
    fn the_fields_of_a_newer_segment_replace_those_of_a_train_and_none_goes_back() {
        let (stamped, plain) = (header(100, Some((10, 5))), header(100, None));
        for (train, number, stamps, expected) in [
            (&plain, 100, None, Ok(())),
            (&plain, 101, None, Ok(())),
            (&plain, 99, None, Err(Mismatch::AckNumber)),
            (&plain, 101, Some((20, 5)), Err(Mismatch::Options)),
            (&stamped, 101, None, Err(Mismatch::Options)),
            (&stamped, 101, Some((20, 5)), Ok(())),
            (&stamped, 101, Some((21, 6)), Ok(())),
            (&stamped, 101, Some((19, 5)), Err(Mismatch::Options)),
            (&stamped, 101, Some((10, 5)), Err(Mismatch::Options)),
            (&stamped, 101, Some((20, 4)), Err(Mismatch::Options)),
            (&stamped, 101, Some((21, 0)), Err(Mismatch::Options)),
            (&stamped, 99, Some((21, 6)), Err(Mismatch::AckNumber)),
        ] {
            assert_eq!(may_renew(train, &header(number, stamps), 20), expected, "{number} {stamps:?}");
        }
        let without_echo = header(100, Some((20, 0)));
        assert_eq!(may_renew(&without_echo, &header(100, Some((20, 0))), 20), Ok(()), "the same as before");
    }

    /// Tests that the train keeps the TSval of its first segment (RFC 7323, section 4.3), and gets the newest
    /// acknowledgment number, window and TSecr.
    #[test]
    fn a_train_gets_the_newest_number_window_and_echo() {
        let mut train = header(100, Some((10, 5)));
        assert_eq!(renew(&mut train, &header(0x0203, Some((20, 6)))), 20);
        assert_eq!(train[tcp::ACK_NUMBER..][..4], [0, 0, 2, 3]);
        assert_eq!(train[tcp::WINDOW..][..2], [3, 7]);
        assert_eq!(stamps(&train), Some(Stamps { value: 10, echo: 6 }));
        let mut plain = header(100, None);
        assert_eq!(renew(&mut plain, &header(101, None)), 0);
        assert_eq!(plain, header(101, None));
    }
}
