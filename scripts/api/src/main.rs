//! Prints the public API that is described by the JSON of rustdoc, one item a line. The argument names the file.

use std::{env, error::Error, fs, io, path::Path, process::ExitCode};

/// The format that the library `public-api` reads. Rust 1.94 and 1.95 write it.
const FORMAT: &str = "\"format_version\":57";
/// The exit code if the file has another format.
const OTHER_FORMAT: u8 = 3;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let path = env::args_os().nth(1).ok_or("name the JSON of rustdoc")?;
    if !has_our_format(Path::new(&path))? {
        return Ok(ExitCode::from(OTHER_FORMAT));
    }
    let api = public_api::Builder::from_rustdoc_json(path).omit_blanket_impls(true).build()?;
    for item in api.items().map(ToString::to_string).filter(|item| !is_noise(item)) {
        println!("{item}");
    }
    Ok(ExitCode::SUCCESS)
}

fn has_our_format(path: &Path) -> io::Result<bool> {
    Ok(fs::read_to_string(path)?.contains(FORMAT))
}

/// Traits that no host asks for. `Send` and `Sync` stay: to lose one of them is a break.
fn is_noise(item: &str) -> bool {
    ["Freeze", "RefUnwindSafe", "StructuralPartialEq", "Unpin", "UnsafeUnpin", "UnwindSafe"]
        .iter()
        .any(|name| item.starts_with("impl") && item.contains(&format!("::{name} for ")))
}
