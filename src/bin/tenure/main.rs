//! The command `tenure`: holds a session while a program runs.

#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "the other side is in `run`")]
mod guarded;
#[cfg(target_os = "linux")]
mod guardian;
#[cfg(target_os = "linux")]
mod inherited;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "the other side is in `run`")]
mod terminal;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "the other side is in `run`")]
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = in_another_role() {
        return code;
    }
    eprintln!("tenure: no command given");
    ExitCode::from(64)
}

/// The same binary is started again between this command and the program it runs.
#[cfg(target_os = "linux")]
fn in_another_role() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let role = args.next()?;
    match role.to_str()? {
        wire::GUARDIAN => Some(guardian::main(args)),
        wire::LAUNCH => Some(launch::main(args)),
        _ => None,
    }
}
