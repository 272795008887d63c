use crate::decap_judge::{decapsulators, pull};

/// Decapsulates an arbitrary outer packet by tunnels of every kind: it terminates, errors outside are refused, errors
/// inside stay errors, and a remote checksum is completed correctly or not at all.
pub(crate) fn decap(data: &[u8]) {
    for mut tunnel in decapsulators() {
        if let Err(what) = pull(&mut tunnel, data) {
            panic!("{what}: {:?}", tunnel.config());
        }
    }
}
