use segue::wire::virtio::{Form, VirtioNet};

/// Length of the longest form, bytes.
const LONGEST: usize = 24;

/// Runs the virtio-net header codec: a header that is read and written again keeps every meaningful byte in each of the
/// forms, in either byte order, and too few bytes are refused.
pub(crate) fn vnet(data: &[u8]) {
    for form in (0..=LONGEST).filter_map(Form::of_len) {
        assert!(!form.is_empty());
        let Some(header) = VirtioNet::parse(data, form) else {
            assert!(data.len() < form.len());
            continue;
        };
        let bytes = header.emit(form);
        // Two bytes behind the kind of the hash have no meaning.
        for field in [0..10, 10..12, 12..18, 20..LONGEST] {
            if field.end <= form.len() {
                assert_eq!(bytes[field.clone()], data[field]);
            }
        }
        assert_eq!(VirtioNet::parse(&bytes, form), Some(header));
        let native = VirtioNet::parse_native(data, form).expect("as many bytes as before");
        assert_eq!(native.emit_native(form), bytes);
    }
}
