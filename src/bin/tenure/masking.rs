//! Masks passwords in text that is shown. An error about the command line quotes arguments, and a URL with a password
//! may stand among them.

/// The text, with every password in it masked.
pub(crate) fn without_passwords(text: &str) -> String {
    without_password_parameters(&without_login_passwords(text))
}

/// Masks the values of `password=…`, `sslpassword=…`, `…_key=…` and the like, in a URL or not. A value ends where the
/// parameter or the word ends.
fn without_password_parameters(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let Some(at) = ["password=", "secret=", "_key="]
        .iter()
        .filter_map(|name| Some(lower.find(name)? + name.len()))
        .min()
    else {
        return text.to_owned();
    };
    let (before, after) = text.split_at(at);
    let is_end = |char: char| char.is_whitespace() || matches!(char, '&' | '\'' | '"' | '`');
    let rest = &after[after.find(is_end).unwrap_or(after.len())..];
    let mask = if after.starts_with(is_end) || after.is_empty() { "" } else { "***" };
    format!("{before}{mask}{}", without_password_parameters(rest))
}

/// Masks the password in `scheme://user:password@host`. The password may have an `@` itself.
fn without_login_passwords(text: &str) -> String {
    let Some((before, after)) = text.split_once("://") else { return text.to_owned() };
    let is_end = |char: char| char.is_whitespace() || matches!(char, '\'' | '"' | '`');
    let (url, rest) = after.split_at(after.find(is_end).unwrap_or(after.len()));
    let masked = match url.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host))) {
        Some((user, host)) => format!("{user}:***@{host}"),
        None => url.to_owned(),
    };
    format!("{before}://{masked}{}", without_login_passwords(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_masked_and_nothing_else() {
        for (text, shown) in [
            ("no url", "no url"),
            ("'postgres://u:p@h/d' found", "'postgres://u:***@h/d' found"),
            ("a://u:p@q@h b://v:w@h", "a://u:***@h b://v:***@h"),
            ("--x=postgres:///d?user=u&password=p&port=1", "--x=postgres:///d?user=u&password=***&port=1"),
            ("'postgres://u:p@h/d?sslpassword=p' 'b'", "'postgres://u:***@h/d?sslpassword=***' 'b'"),
            ("postgres://h/d?PASSWORD=a@b", "postgres://h/d?PASSWORD=***"),
            ("host=h password=p dbname=d", "host=h password=*** dbname=d"),
            ("the password=", "the password="),
            ("postgres://u@h:5432/d sqlite:///a:b", "postgres://u@h:5432/d sqlite:///a:b"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
}
