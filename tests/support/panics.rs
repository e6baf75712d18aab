//! A panic of ours fails the whole test binary, on whatever thread it happens.
//!
//! The runtime, an actor's thread or a caught call may swallow a panic, and the test that caused it passes. So every
//! panic that comes from the library or from what it uses ends the process, unless its text says that it happens "on
//! purpose". Panics of the tests themselves, with a place in `tests/`, are the harness's.

use std::{io::Write as _, panic::PanicHookInfo, process::abort, thread};

#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
#[allow(
    unsafe_code,
    reason = "the loader calls what stands in this section before `main`, as C's constructors"
)]
static BEFORE_MAIN: extern "C" fn() = watch;

extern "C" fn watch() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if is_ours(panic) {
            // Not `eprintln!`: what the harness captures is lost with the process.
            let thread = thread::current();
            let _ = writeln!(
                std::io::stderr(),
                "a panic on thread {:?}: {panic}",
                thread.name().unwrap_or_default()
            );
            abort();
        }
        report(panic);
    }));
}

fn is_ours(panic: &PanicHookInfo<'_>) -> bool {
    let is_of_a_test = panic.location().is_some_and(|location| location.file().starts_with("tests/"));
    let is_on_purpose = panic.payload_as_str().is_some_and(|text| text.contains("on purpose"));
    !is_of_a_test && !is_on_purpose
}
