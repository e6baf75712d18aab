//! The order of the modules: what may use what, and that nothing uses what stands above it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The modules of the crate, highest first. A module may use those of its own line and of the lines below it.
const LAYERS: &[&[&str]] = &[
    &["testing", "web"],
    &["supervisor"],
    &["actor"],
    &["run"],
    &["fence_gate", "lease", "pin"],
    &["apart", "diagnosis", "error", "event", "host"],
    &["store"],
    &["history"],
    &["caller", "config", "end", "process", "trace", "watch"],
    &["session"],
    &["backoff", "clock", "limits", "origin", "pulse", "text"],
];

#[test]
fn no_module_uses_one_that_stands_above_it() {
    let rank = |module: &str| LAYERS.iter().position(|layer| layer.contains(&module));
    let mut faults = Vec::new();
    for file in library() {
        let Some(module) = file.module.first() else { continue };
        let own = rank(module).unwrap_or_else(|| panic!("{module} has no layer: add it to LAYERS"));
        for path in &file.uses {
            if rank(&path[0]).is_some_and(|used| used < own) {
                faults.push(format!("{} uses crate::{}", file.module.join("::"), path.join("::")));
            }
        }
    }
    assert!(faults.is_empty(), "these modules use what stands above them:\n{}", faults.join("\n"));
}

#[test]
fn no_modules_of_one_folder_use_each_other_in_a_circle() {
    let files = library();
    let modules: BTreeSet<_> = files.iter().map(|file| file.module.clone()).collect();
    // For each folder: which of its modules uses which other, with all that is below them.
    let mut arrows: BTreeMap<&[String], Arrows<'_>> = BTreeMap::new();
    for file in &files {
        for path in &file.uses {
            let shared = file.module.iter().zip(path).take_while(|(own, used)| own == used).count();
            let (Some(from), Some(to)) = (file.module.get(shared), path.get(shared)) else { continue };
            if modules.contains(&path[..=shared]) {
                let folder = arrows.entry(&file.module[..shared]).or_default();
                folder.entry(from).or_default().insert(to);
            }
        }
    }
    let circles: Vec<_> = arrows
        .iter()
        .filter_map(|(folder, arrows)| Some(format!("{}: {}", folder.join("::"), circle(arrows)?)))
        .collect();
    assert!(circles.is_empty(), "these modules use each other:\n{}", circles.join("\n"));
}

type Arrows<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// The arrows between modules from which a way leads back to themselves, if there are any.
fn circle(arrows: &Arrows<'_>) -> Option<String> {
    let leads_to = |start: &str, end: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(module) = next.pop() {
            let used = arrows.get(module).into_iter().flatten().copied();
            next.extend(used.filter(|used| seen.insert(*used)));
        }
        seen.contains(end)
    };
    let all = arrows.iter().flat_map(|(from, used)| used.iter().map(|to| (*from, *to)));
    let closed: Vec<_> =
        all.filter(|(from, to)| leads_to(to, from)).map(|(from, to)| format!("{from} → {to}")).collect();
    (!closed.is_empty()).then(|| closed.join(", "))
}

struct Source {
    /// `["store", "postgres", "target"]`; empty for the root.
    module: Vec<String>,
    /// What of this crate its code names, as whole paths: `["store", "error", "StoreError"]`.
    uses: Vec<Vec<String>>,
}

/// All files of the library, without their tests. The command is a crate of its own.
fn library() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut files, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("bin") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let module = module_of(&path.strip_prefix(&root).unwrap().with_extension(""));
                if module.last().is_none_or(|last| last != "tests") {
                    files.push((module, code(&fs::read_to_string(&path).unwrap())));
                }
            }
        }
    }
    resolve(&files)
}

fn module_of(relative: &Path) -> Vec<String> {
    let module: Vec<_> = relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if module == ["lib"] { Vec::new() } else { module }
}

/// Without comments and tests, every blank a space.
fn code(text: &str) -> String {
    let end = ["#[cfg(test)]\nmod tests", "#[cfg(all(test, "]
        .into_iter()
        .filter_map(|tests| text.find(tests))
        .min()
        .unwrap_or(text.len());
    let lines = text[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

/// Follows every name to the module that defines it: a `use` may take it from a module that merely hands it on.
fn resolve(files: &[(Vec<String>, String)]) -> Vec<Source> {
    let modules: BTreeSet<_> = files.iter().map(|(module, _)| module.clone()).collect();
    let named: Vec<_> = files.iter().map(|(module, code)| (module, named(code, module, &modules))).collect();
    let mut handed_on = BTreeMap::new();
    for (module, named) in &named {
        for Named { path, visible_as } in named {
            if let Some(name) = visible_as {
                handed_on.insert([module.as_slice(), std::slice::from_ref(name)].concat(), path.clone());
            }
        }
    }
    let follow = |mut path: Vec<String>| {
        // No name is handed on more often; a bound, so that a loop of the test's own making ends.
        for _ in 0..8 {
            let from = |length: usize| handed_on.get(&path[..length]).filter(|from| **from != path[..length]);
            let Some((length, from)) = (1..=path.len()).find_map(|length| Some((length, from(length)?)))
            else {
                break;
            };
            path = [from, &path[length..]].concat();
        }
        path
    };
    named
        .into_iter()
        .map(|(module, named)| Source {
            module: module.clone(),
            uses: named.into_iter().map(|named| follow(named.path)).filter(|path| !path.is_empty()).collect(),
        })
        .collect()
}

struct Named {
    path: Vec<String>,
    /// The name that a `use` gives it in the module.
    visible_as: Option<String>,
}

/// What code names of this crate: in its `use` lines, and by whole paths elsewhere.
fn named(code: &str, module: &[String], modules: &BTreeSet<Vec<String>>) -> Vec<Named> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let is_statement = code[..at].chars().next_back().is_none_or(|before| " ;{})]".contains(before));
        if let Some(end) = code[at..].find(';').filter(|_| is_statement) {
            expand(&code[at + "use ".len()..at + end], &[], &mut found);
        }
    }
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let is_start =
                !code[..at].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before));
            if is_start {
                let end = code[at..].find(|char: char| !(char.is_alphanumeric() || "_:".contains(char)));
                expand(
                    code[at..end.map_or(code.len(), |end| at + end)].trim_end_matches(':'),
                    &[],
                    &mut found,
                );
                found.last_mut().unwrap().visible_as = None;
            }
        }
    }
    let absolute = |named: Named| Some(Named { path: absolute(named.path, module, modules)?, ..named });
    found.into_iter().filter_map(absolute).collect()
}

/// `a::{b, c::d as e}` as `a::b` and `a::c::d`.
fn expand(tree: &str, before: &[String], found: &mut Vec<Named>) {
    let mut path = before.to_vec();
    let (names, group) = match tree.split_once('{') {
        Some((names, group)) => (names, group.trim_end().strip_suffix('}')),
        None => (tree, None),
    };
    let (names, renamed) = match names.split_once(" as ") {
        Some((names, renamed)) => (names, Some(renamed.trim().to_owned())),
        None => (names, None),
    };
    path.extend(names.trim().split("::").filter(|name| !name.is_empty()).map(str::to_owned));
    let Some(group) = group else {
        path.pop_if(|last| last == "self" && !before.is_empty());
        let visible_as = renamed.or_else(|| path.last().cloned());
        return found.push(Named { path, visible_as });
    };
    let (mut depth, mut start) = (0, 0);
    for (at, char) in group.char_indices().chain([(group.len(), ',')]) {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !group[start..at].trim().is_empty() {
                    expand(&group[start..at], &path, found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

fn absolute(path: Vec<String>, module: &[String], modules: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let child = [module, path.get(..1)?].concat();
    match path.first().map(String::as_str) {
        Some("crate") => Some(path[1..].to_vec()),
        Some("self") => Some([module, &path[1..]].concat()),
        Some("super") => Some([&module[..module.len().checked_sub(supers)?], &path[supers..]].concat()),
        _ if modules.contains(&child) => Some([module, &path].concat()),
        _ => None,
    }
}

#[test]
fn names_are_followed_to_the_module_that_defines_them() {
    let files = [
        ("lib", "mod a; mod b; pub use a::{Deep as High, self};"),
        ("a", "//! use crate::b::Comment;\nmod deep;\npub use deep::Deep;"),
        ("a/deep", "use std::fmt;\nuse super::super::b;\nlet because = crate::b::f(); "),
        ("b", "use crate::{High, a::{self, X}};\n#[cfg(test)]\nmod tests { use crate::c::Unseen; }"),
    ];
    let files = files.map(|(file, text)| (module_of(&PathBuf::from(file)), code(text)));
    let found = resolve(&files).into_iter().map(|source| {
        let uses: BTreeSet<_> = source.uses.iter().map(|path| path.join("::")).collect();
        (source.module.join("::"), uses.into_iter().collect::<Vec<_>>().join(" "))
    });
    let expected = [
        ("", "a a::deep::Deep"),
        ("a", "a::deep::Deep"),
        ("a::deep", "b b::f"),
        ("b", "a a::X a::deep::Deep"),
    ];
    assert_eq!(
        found.collect::<Vec<_>>(),
        expected.map(|(module, uses)| (module.to_owned(), uses.to_owned()))
    );
}
