//! `tenure completions` and `tenure man`: shell completions and manual pages, from the definition of the command line.

use clap::{Command, CommandFactory as _};

use crate::{
    cli::{Cli, CompletionsArgs, ManArgs},
    exit::{Failure, UNAVAILABLE, USAGE},
    show,
};

pub(crate) fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tenure", &mut script);
    show::print(String::from_utf8_lossy(&script))?;
    Ok(0)
}

pub(crate) fn page(args: &ManArgs) -> Result<u8, Failure> {
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(of(args)?).render(&mut page);
    rendered.map_err(|error| Failure::new(UNAVAILABLE, error))?;
    show::print(String::from_utf8_lossy(&page))?;
    Ok(0)
}

/// The subcommand, under the name that `man` expects, such as `tenure-run`.
fn of(args: &ManArgs) -> Result<Command, Failure> {
    let mut cli = Cli::command();
    cli.build();
    let Some(name) = &args.of else { return Ok(cli) };
    let found = cli.find_subcommand(name).filter(|found| found.get_name() != "help").cloned();
    let Some(found) = found else {
        let message =
            format!("there is no subcommand {:?}; see tenure --help", tenure::text::printable(name));
        return Err(Failure::new(USAGE, message));
    };
    Ok(found.name(format!("tenure-{name}")).version(env!("CARGO_PKG_VERSION")))
}
