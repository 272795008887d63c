//! Reasons why a lease yields no peer.

use std::fmt;

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, $sentence:literal;)+) => {
        /// The reason why an entry of the registry yields no peer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Refusal {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Refusal {
            /// All reasons, in the order of their declaration.
            pub const ALL: &[Refusal] = &[$(Refusal::$variant,)+];

            /// Returns the name of the reason in JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $(Refusal::$variant => $name,)+
                }
            }

            /// Returns the description of the reason for users.
            pub fn sentence(self) -> &'static str {
                match self {
                    $(Refusal::$variant => $sentence,)+
                }
            }
        }
    };
}

refusals! {
    /// The key is not below `PREFIX/subnets/`.
    KeyOutside = "key_outside", "the key begins as the directory of the leases does and is not in it";
    /// The key has no subnet in its name.
    KeyMalformed = "key_malformed", "the key is not ADDRESS-LEN, as 198.19.59.0-24";
    /// The subnet of the key has host bits.
    HostBits = "host_bits", "the address of the subnet has host bits";
    /// The subnet is not in the network.
    OutsideNetwork = "outside_network", "the subnet is not in the network";
    /// The subnet overlaps that of another lease, which has precedence: by its length, else by its age.
    Overlap = "overlap", "the subnet shares addresses with another lease, which goes first";
    /// The subnet overlaps this host's subnet.
    OwnSubnet = "own_subnet", "the subnet shares addresses with that of this host";
    /// The value has more than 4096 bytes.
    ValueTooLong = "value_too_long", "the value has more than 4096 bytes";
    /// The value is no JSON object, or has a field twice that differs in case only.
    ValueMalformed = "value_malformed", "the value is no JSON object, or has a field twice that differs in case only";
    /// The value has no PublicIP.
    AddressMissing = "address_missing", "the value has no PublicIP";
    /// PublicIP is no IPv4 address.
    AddressMalformed = "address_malformed", "PublicIP is no IPv4 address";
    /// PublicIP is not the address of one host.
    AddressNotUnicast = "address_not_unicast", "PublicIP is loopback, link-local, multicast or reserved";
    /// PublicIP is in the network.
    AddressInNetwork = "address_in_network", "PublicIP is in the network: the tunnel would carry itself";
    /// PublicIP is that of this host.
    OwnAddress = "own_address", "PublicIP is that of this host";
    /// The type of the backend is unknown.
    BackendUnknown = "backend_unknown", "BackendType is unknown";
    /// The type of the backend is not that of the network.
    BackendOther = "backend_other", "BackendType is not that of the network";
    /// BackendData is missing.
    DataMissing = "data_missing", "BackendData is missing";
    /// BackendData is no JSON object, or one of its fields has a wrong type.
    DataMalformed = "data_malformed", "BackendData is not what the backend writes";
    /// The VNI is not that of the network.
    OtherVni = "other_vni", "the VNI is not that of the network";
    /// VtepMAC is no MAC address.
    MacMalformed = "mac_malformed", "VtepMAC is no MAC address";
    /// VtepMAC is not that of one host.
    MacNotUnicast = "mac_not_unicast", "VtepMAC is zero or multicast";
    /// VtepMAC is that of this host.
    OwnMac = "own_mac", "VtepMAC is that of this host";
    /// The offer of segue cannot be read.
    OfferMalformed = "offer_malformed", "the offer of encapsulations is not what segue writes";
    /// The tunnel refuses the peer.
    Tunnel = "tunnel", "the tunnel refuses the peer by what only it knows";
    /// The network has more leases than this host accepts.
    TooMany = "too_many", "there are more leases than this host takes";
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
