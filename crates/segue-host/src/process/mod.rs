//! Processes: the state of a supervisor's child, and the privileges that a process drops before it reads untrusted
//! data.

mod sys;

pub use sys::{
    Change, Step, adopt_orphans, change, close_inherited, collect_orphans, end, filter_calls, forget_environment,
    has_ended_child, has_stopped_child, kill_group, limit_capabilities, limit_passed_on_capabilities, note_inherited,
    replace_program, set_inherited, starts_with_all_rights, take_inherited, wait_for_group, watch_end,
};
