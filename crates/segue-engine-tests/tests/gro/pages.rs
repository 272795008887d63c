//! Tests of the two styles of receive buffers: pages with many frames each, and one buffer for each frame.

use std::ops::Range;
use std::sync::Arc;

use segue::gro::{Config, Gro, Profile};
use segue::packet::{Frag, Pool, Start, Tunnels, Unit};
use segue::time::Nanos;
use segue_testkit::build::Ethernet;

use crate::bench::{frames, run, tcp4};
use segue_testkit::flow::Sender;

/// The pieces of a frame: pairs of page and range, in order.
type Parts = Vec<(usize, Range<usize>)>;

/// Puts frames into pages of `size`, one after the other; a frame that does not fit continues in the next page.
fn in_pages(frames: &[Vec<u8>], size: usize) -> (Vec<Arc<[u8]>>, Vec<Parts>) {
    let bytes = frames.concat();
    let pages: Vec<Arc<[u8]>> = bytes.chunks(size).map(Arc::from).collect();
    let mut at = 0;
    let places = frames.iter().map(|frame| {
        let (mut parts, end) = (Vec::new(), at + frame.len());
        while at < end {
            let stop = end.min((at / size + 1) * size);
            parts.push((at / size, at % size..at % size + stop - at));
            at = stop;
        }
        parts
    });
    let places = places.collect();
    (pages, places)
}

#[test]
fn frames_in_pages_of_every_size_join_without_a_copy_and_give_the_pages_back() {
    for size in [4096, 8192, 16_384, 32_768] {
        for profile in [Profile::Strict, Profile::linux(), Profile::Lro] {
            let mut sender = Sender::tcp(crate::bench::v4(), 1, 1, Vec::new());
            let packets: Vec<_> = (0..44).map(|_| sender.send(1448, 0).bytes()).collect();
            let frames = frames(&Ethernet::default(), packets);
            let (pages, places) = in_pages(&frames, size);
            let crossing = places.iter().filter(|parts| parts.len() > 1).count();
            assert!(crossing > 0, "some frames cross pages");
            let mut gro = Gro::new(Config { profile, ..Config::default() });
            let mut pool: Pool<Arc<[u8]>> = Pool::new(64);
            for parts in &places {
                let mut packet = pool.take();
                let ranges = parts.iter().map(|(page, range)| Frag::new(pages[*page].clone(), range.clone()));
                packet.load_ranges(ranges, Start::Ethernet, &Tunnels::NONE);
                gro.push(packet, Nanos(0), &mut pool);
            }
            gro.flush();
            let train = gro.pop().unwrap();
            assert_eq!((gro.stats().segments, train.payload.len()), (44, 44 * 1448));
            for frag in train.payload.frags() {
                let within = |page: &Arc<[u8]>| page.as_ptr_range().contains(&frag.bytes().as_ptr());
                assert!(pages.iter().any(within), "where it was received");
            }
            // Headers that cross a page may leave nothing of their frame in the first one.
            assert!((44..=44 + crossing).contains(&train.payload.frags().len()));
            assert!(pages.iter().all(|page| Arc::strong_count(page) > 1));
            pool.put(train);
            assert!(pages.iter().all(|page| Arc::strong_count(page) == 1), "every page is free again");
        }
    }
}

#[test]
fn one_buffer_a_frame_is_chained() {
    let buffers: Vec<Arc<[u8]>> = run(&mut tcp4(), 5).into_iter().map(Arc::from).collect();
    let mut gro = Gro::new(Config::default());
    let mut pool: Pool<Arc<[u8]>> = Pool::new(8);
    for buffer in &buffers {
        let mut packet = pool.take();
        packet.load(Frag::all(buffer.clone()), Start::Ip, &Tunnels::NONE);
        gro.push(packet, Nanos(0), &mut pool);
    }
    gro.flush();
    let train = gro.pop().unwrap();
    assert!(matches!(train.offload.unit, Unit::Train { .. }));
    assert!(
        train.payload.frags().iter().zip(&buffers).all(|(frag, buffer)| frag.bytes().as_ptr() == buffer[40..].as_ptr())
    );
    drop(train);
    assert!(buffers.iter().all(|buffer| Arc::strong_count(buffer) == 1));
}
