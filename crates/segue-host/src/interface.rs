//! Rules for the names of network interfaces.

/// Longest name of a network interface, bytes (IFNAMSIZ without the final zero).
pub const NAME_LEN: usize = 15;

/// Checks that the kernel accepts `name` for an interface; the error says what is wrong with the name.
pub fn check_name(name: &str) -> Result<&str, &'static str> {
    match name {
        "" | "." | ".." => Err("expected a name for the interface"),
        _ if name.len() > NAME_LEN => Err("a name has at most 15 bytes"),
        // The kernel refuses '/', ':' and white space; '%' would ask it to choose a number.
        _ if name.chars().any(|c| c == '/' || c == ':' || c == '%' || c.is_whitespace() || c.is_control()) => {
            Err("a name has no space, '/', ':' or '%'")
        }
        _ => Ok(name),
    }
}
