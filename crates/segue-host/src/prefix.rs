//! IP addresses with a prefix length, such as `198.18.0.1/24`.

use std::net::IpAddr;
use std::str::FromStr;

/// An IP address with the length of its network part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// The address, with its host bits.
    pub address: IpAddr,
    /// The length of the network part, bits.
    pub len: u8,
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl FromStr for Prefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Prefix, Self::Err> {
        let (address, len) = text.split_once('/').ok_or("expected ADDRESS/LENGTH")?;
        let address: IpAddr = address.parse().map_err(|_| "expected an IPv4 or IPv6 address before the /")?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        // `+24` and `024` are numbers for Rust, and no lengths.
        let is_plain = len.bytes().all(|byte| byte.is_ascii_digit()) && (len.len() == 1 || !len.starts_with('0'));
        let len = len.parse().ok().filter(|len| is_plain && *len <= most);
        let wrong = if most == 32 { "expected a length of 0 to 32" } else { "expected a length of 0 to 128" };
        Ok(Prefix { address, len: len.ok_or(wrong)? })
    }
}

impl Prefix {
    /// Returns the prefix with its host bits cleared.
    pub fn masked(self) -> Prefix {
        let len = u32::from(self.len);
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32u32.saturating_sub(len)).unwrap_or(0);
                IpAddr::V4((v4.to_bits() & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128u32.saturating_sub(len)).unwrap_or(0);
                IpAddr::V6((v6.to_bits() & mask).into())
            }
        };
        Prefix { address, len: self.len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_as_iproute2_writes_them_and_nothing_else() {
        for text in ["0.0.0.0/0", "198.18.0.0/15", "198.18.0.1/32", "::/0", "2001:db8::/64", "2001:db8::1/128"] {
            assert_eq!(text.parse::<Prefix>().map(|prefix| prefix.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "198.18.0.0", "198.18.0.0/", "198.18.0.0/33", "::/129", "::/+1", "::/01", "a/1", "198.18/16"] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn host_bits_are_cleared() {
        for (text, masked) in
            [("198.18.3.7/15", "198.18.0.0/15"), ("1.2.3.4/0", "0.0.0.0/0"), ("2001:db8::7/64", "2001:db8::/64")]
        {
            assert_eq!(text.parse::<Prefix>().map(Prefix::masked), masked.parse());
        }
    }
}
