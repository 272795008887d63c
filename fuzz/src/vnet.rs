use segue::wire::virtio::{Form, VirtioNet};

/// Runs the virtio-net header codec: a header that is read and written again keeps every meaningful byte in each of the
/// three forms, and too few bytes are refused.
pub(crate) fn vnet(data: &[u8]) {
    for form in [Form::Basic, Form::Buffers, Form::Tunnel] {
        let Some(header) = VirtioNet::parse(data, form) else {
            assert!(data.len() < form.len());
            continue;
        };
        let bytes = header.emit(form);
        assert_eq!(bytes[..10], data[..10]);
        if form == Form::Tunnel {
            assert_eq!(bytes[20..24], data[20..24]);
        }
        assert_eq!(VirtioNet::parse(&bytes, form), Some(header));
    }
}
