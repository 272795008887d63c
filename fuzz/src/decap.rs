use crate::decap_judge::{decapsulators, pull};

/// Decapsulation of an arbitrary outer packet by tunnels of every kind: it ends, what is wrong outside is refused, what is
/// wrong inside stays wrong, and a remote checksum comes out right or not at all.
pub fn decap(data: &[u8]) {
    for mut tunnel in decapsulators() {
        if let Err(what) = pull(&mut tunnel, data) {
            panic!("{what}: {:?}", tunnel.config());
        }
    }
}
