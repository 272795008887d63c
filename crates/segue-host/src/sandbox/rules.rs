//! Rules of the filters: the arguments with which a system call is allowed.

use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

/// The bits of the second argument of `socket` that are the type; the others are flags (socket(2)).
const TYPE: u64 = 0xf;

/// Returns rules that allow each of the given values of one argument.
///
/// # Errors
/// Where there is no such argument.
pub fn one_of(argument: u8, values: impl IntoIterator<Item = u64>) -> Result<Vec<SeccompRule>, BackendError> {
    values.into_iter().map(|value| when(&[(argument, SeccompCmpOp::Eq, value)])).collect()
}

/// Returns rules of `socket` for sockets of these address families: on the Internet connections of TCP and, where
/// `resolves`, datagrams. Landlock knows the ports of TCP alone: MPTCP would reach any.
///
/// # Errors
/// As for [`one_of`].
pub fn sockets(families: &[libc::c_int], resolves: bool) -> Result<Vec<SeccompRule>, BackendError> {
    let of_type = |kind: libc::c_int| (1, SeccompCmpOp::MaskedEq(TYPE), kind as u64);
    let mut rules = Vec::new();
    for &family in families {
        let of_family = (0, SeccompCmpOp::Eq, family as u64);
        if family == libc::AF_UNIX {
            rules.push(when(&[of_family])?);
            continue;
        }
        let kinds = [(libc::SOCK_STREAM, libc::IPPROTO_TCP), (libc::SOCK_DGRAM, libc::IPPROTO_UDP)];
        for (kind, protocol) in kinds.into_iter().take(if resolves { 2 } else { 1 }) {
            for protocol in [0, protocol] {
                rules.push(when(&[of_family.clone(), of_type(kind), (2, SeccompCmpOp::Eq, protocol as u64)])?);
            }
        }
    }
    Ok(rules)
}

/// Returns the rules of the system calls that send, with which no data opens a connection (`MSG_FASTOPEN`): that would
/// pass by what Landlock says of `connect`.
///
/// # Errors
/// As for [`one_of`].
pub fn sends() -> Result<[(i64, Vec<SeccompRule>); 3], BackendError> {
    let calls = [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)];
    let opens_none = |flags: u8| when(&[(flags, SeccompCmpOp::MaskedEq(libc::MSG_FASTOPEN as u64), 0)]);
    let [first, second, third] = calls.map(|(call, flags)| opens_none(flags).map(|rule| (call, vec![rule])));
    Ok([first?, second?, third?])
}

/// Returns a rule for arguments by their positions, all of which must match.
///
/// # Errors
/// As for [`one_of`].
pub fn when(arguments: &[(u8, SeccompCmpOp, u64)]) -> Result<SeccompRule, BackendError> {
    let conditions = arguments
        .iter()
        .map(|(place, op, value)| SeccompCondition::new(*place, SeccompCmpArgLen::Dword, op.clone(), *value));
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}
