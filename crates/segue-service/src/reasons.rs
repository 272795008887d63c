//! Every reason that an instance counts, with its description: the single list behind metrics, help and manual.

use segue::encap::{DecapRefusal, EncapRefusal};
use segue::gro::{Flush, Mismatch, RefusalReason};
use segue::gso;
use segue::reason::Reason;
use segue_control::model::OUTER_CSUM;
use segue_datapath::bridge;
use segue_datapath::forward::DropReason;
use segue_datapath::nat;
use segue_datapath::overlay;
use segue_datapath::tunnel::Dropped;
use segue_fastpath::left_reasons;
use segue_lan78xx::frame::rx::Malformed;
use segue_port::vhost::{GuestDrop, Stop};
use segue_port::{Drop, Fallback};

/// A reason why packets are dropped or not merged: its name and its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key of its counters in the document of `segue stat`: `drops`, `flushes`, `refusals`, `mismatches`,
    /// `fallbacks`, `numbers` or `left`.
    pub group: &'static str,
    /// The part of the program that counts it.
    pub stage: &'static str,
    /// Name of the reason, as in JSON.
    pub name: &'static str,
    /// Sentence that explains the reason.
    pub sentence: &'static str,
}

/// The drops that the kernel or the model of an adapter counts.
const OTHERS: &[Entry] = &[
    entry(
        "kernel",
        OUTER_CSUM,
        "Dropped by the kernel, for any socket of the network namespace: a wrong outer UDP checksum, or none where one is \
         needed.",
    ),
    entry("adapter", "rx_oversize_frame_errors", "Longer than the limit of the adapter's receiver, which dropped it."),
    entry("adapter", "rx_dropped_frames", "Dropped by the adapter because its receive FIFO was full."),
    entry("model", "cable_lost", "A frame for the model's TAP, which was down or whose queue was full."),
    entry("model", "unfit", "A received frame longer than the burst cap or than the transfer to fill."),
    entry("model", "bad_lso", "A frame from the host with segmentation that was not TCP."),
    entry("model", "bad_fcs", "A frame from the host marked as having an FCS, with a wrong one."),
    entry("model", "no_link", "A frame from the host without a link, or with a link of another speed than the MAC's."),
    entry("model", "wire_full", "A frame from the host lost because too many were on the wire already."),
    entry("model", "partner_lost", "A frame lost by the model's partner because its queue was full."),
    entry("model", "too_long", "A received frame longer than the MAC's limit."),
    entry("model", "fifo_full", "A received frame lost because the FIFO was full."),
    entry("model", "flushed", "A received frame lost when the FIFO or the chip was reset, or the chip unplugged."),
    entry("model", "unclaimed", "A received frame in a completed transfer whose host had disconnected."),
    entry("model", "cut_off", "A frame from the host still in transmission when the chip was unplugged."),
    entry(
        "model",
        "too_big",
        "A frame from the host longer than the transmit FIFO, which has to hold a frame as a whole.",
    ),
];

const fn entry(stage: &'static str, name: &'static str, sentence: &'static str) -> Entry {
    Entry { group: "drops", stage, name, sentence }
}

fn of<R: Reason>(group: &'static str, stage: &'static str) -> impl Iterator<Item = Entry> {
    R::ALL.iter().map(move |reason| Entry { group, stage, name: reason.name(), sentence: reason.help() })
}

/// Returns every counted reason. A name may be there several times: a drop that two stages count, or a name in two
/// groups.
pub fn all() -> impl Iterator<Item = Entry> {
    of::<DecapRefusal>("drops", "decapsulation")
        .chain(of::<EncapRefusal>("drops", "encapsulation"))
        .chain(of::<Dropped>("drops", "tunnel"))
        .chain(of::<overlay::Dropped>("drops", "peers"))
        .chain(of::<bridge::Dropped>("drops", "bridge"))
        .chain(of::<gso::Refusal>("drops", "segmentation"))
        .chain(of::<DropReason>("drops", "route"))
        .chain(of::<nat::Refusal>("drops", "nat"))
        .chain(of::<Drop>("drops", "port"))
        .chain(of::<GuestDrop>("drops", "guest"))
        .chain(of::<Malformed>("drops", "lan78xx"))
        .chain(OTHERS.iter().copied())
        .chain(of::<Flush>("flushes", "gro"))
        .chain(of::<RefusalReason>("refusals", "gro"))
        .chain(of::<Mismatch>("mismatches", "gro"))
        .chain(of::<Fallback>("fallbacks", "port"))
        .chain(of::<Stop>("numbers", "guest"))
        .chain(left_reasons().map(|(name, sentence)| Entry { group: "left", stage: "fastpath", name, sentence }))
}

/// Returns the meaning of the counter `name` of a group: one sentence, or one for each stage that counts it.
pub fn sentence(group: &str, name: &str) -> Option<String> {
    let mut sentences: Vec<&str> = Vec::new();
    for entry in all().filter(|entry| entry.group == group && entry.name == name) {
        if !sentences.contains(&entry.sentence) {
            sentences.push(entry.sentence);
        }
    }
    (!sentences.is_empty()).then(|| sentences.join(" Or: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_of_one_word_and_a_sentence() {
        for Entry { name, sentence, .. } in all() {
            assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
            assert!(sentence.ends_with('.') && !sentence.contains('\n'), "{name}: {sentence}");
        }
    }

    #[test]
    fn a_drop_that_two_stages_count_has_both_sentences() {
        let both = sentence("drops", "inner_malformed").unwrap();
        assert!(both.contains("contradicts the bytes present. Or: It does not begin"), "{both}");
        assert_eq!(sentence("flushes", "psh").as_deref(), Some("PSH is set."));
        assert_eq!(sentence("flushes", "gre_mismatch"), None);
    }
}
