//! `tenure phase`: tells the `tenure run` around this process what CMD is doing.

use tenure::RunPhase;

use crate::{
    cli::{Global, PhaseArgs},
    exit::Failure,
    show,
    side::{self, SideRequest},
};

/// Returns when others can see the phase.
pub(crate) fn phase(global: &Global, args: &PhaseArgs) -> Result<u8, Failure> {
    let phase = RunPhase::new(&args.text)?;
    let remark = side::ask(&SideRequest::Phase(phase.as_str().to_owned()))?;
    if !remark.is_empty() && !global.quiet {
        show::complain(remark);
    }
    Ok(0)
}
