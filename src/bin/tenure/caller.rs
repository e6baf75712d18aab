//! Who gives the commands, as others see it.

/// At most as long as a label may be.
#[cfg(unix)]
pub(crate) fn user_at_host() -> String {
    let uid = nix::unistd::getuid();
    let user = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name);
    let user = user.unwrap_or_else(|| format!("uid {uid}"));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut label = format!("{user}@{host}");
    // A name longer than a label may be is still a name.
    while label.len() > 255 {
        label.pop();
    }
    label
}

#[cfg(not(unix))]
pub(crate) fn user_at_host() -> String {
    format!("pid {}", std::process::id())
}
