//! Rules of the filters: the arguments with which a system call is allowed.

use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

/// Returns rules that allow each of the given values of one argument.
///
/// # Errors
/// Where there is no such argument.
pub fn one_of(argument: u8, values: impl IntoIterator<Item = u64>) -> Result<Vec<SeccompRule>, BackendError> {
    values.into_iter().map(|value| when(&[(argument, SeccompCmpOp::Eq, value)])).collect()
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
