//! The page for operators, whose statements are tried.

/// The statements in it that are wanted, in their order.
pub fn sql(is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let page = include_str!("../../docs/operating.md");
    let blocks = page.split("```sql\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let wanted: Vec<_> = blocks.map(|(sql, _)| sql.to_owned()).filter(|sql| is_wanted(sql)).collect();
    assert!(!wanted.is_empty(), "the page has lost its statements");
    wanted
}
