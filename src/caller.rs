//! The default label of a holder: the user and the host of this process.

use crate::session::Label;

impl Label {
    /// The user that this process runs as, and the host: `ann@build-7`, cut to the longest label. For a user without a
    /// name it is `uid 1000@build-7`. On systems other than Unix it is `pid 4711`.
    ///
    /// This can block: the operating system may ask a directory on the network for the user's name.
    pub fn user_at_host() -> Self {
        let mut label = user_at_host().replace('\0', "");
        while label.len() > Self::MAX_BYTES {
            label.pop();
        }
        match Self::new(label) {
            Ok(label) => label,
            Err(_empty) => unreachable!("an at sign is one byte, and nothing is longer than the bound"),
        }
    }
}

#[cfg(unix)]
fn user_at_host() -> String {
    let uid = nix::unistd::getuid();
    let user = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name);
    let user = user.unwrap_or_else(|| format!("uid {uid}"));
    format!("{user}@{}", rustix::system::uname().nodename().to_string_lossy())
}

#[cfg(not(unix))]
fn user_at_host() -> String {
    format!("pid {}", std::process::id())
}
