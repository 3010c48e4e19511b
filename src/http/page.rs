//! A page of sections, paragraphs and tables, as Markdown and as HTML. `` `code` `` is the one mark
//! that its texts may hold.

use std::fmt::Write as _;

#[derive(Clone, Debug)]
pub(super) struct Page {
    title: &'static str,
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Section(&'static str),
    Text(String),
    Table(Table),
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    head: Vec<&'static str>,
    rows: Vec<(Option<&'static str>, Vec<String>)>,
}

impl Table {
    pub(super) fn new<const COLUMNS: usize>(head: [&'static str; COLUMNS]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// `anchor` is the row's name in links.
    pub(super) fn row<const COLUMNS: usize>(
        &mut self,
        anchor: Option<&'static str>,
        cells: [String; COLUMNS],
    ) {
        self.rows.push((anchor, cells.to_vec()));
    }
}

impl Page {
    pub(super) fn new(title: &'static str) -> Self {
        Self { title, parts: Vec::new() }
    }

    pub(super) fn section(&mut self, title: &'static str) {
        self.parts.push(Part::Section(title));
    }

    pub(super) fn says(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Text(text.into()));
    }

    pub(super) fn shows(&mut self, table: Table) {
        self.parts.push(Part::Table(table));
    }

    pub(super) fn markdown(&self) -> String {
        let mut out = format!("# {}\n", self.title);
        for part in &self.parts {
            // Writing to a String cannot fail.
            let _ = match part {
                Part::Section(title) => write!(out, "\n## {title}\n"),
                Part::Text(text) => write!(out, "\n{text}\n"),
                Part::Table(table) => {
                    let rule = vec!["---"; table.head.len()];
                    let rows = table.rows.iter().map(|(_, row)| row.join(" | "));
                    let lines = [table.head.join(" | "), rule.join(" | ")].into_iter().chain(rows);
                    out.push('\n');
                    lines.into_iter().try_for_each(|line| writeln!(out, "| {line} |"))
                }
            };
        }
        out
    }

    pub(super) fn html(&self) -> String {
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <title>{0}</title>\n<h1>{0}</h1>\n",
            self.title
        );
        for part in &self.parts {
            let _ = match part {
                Part::Section(title) => writeln!(out, "<h2>{title}</h2>"),
                Part::Text(text) => writeln!(out, "<p>{}</p>", inline(text)),
                Part::Table(table) => writeln!(out, "{}", table.html()),
            };
        }
        out.push_str("</html>\n");
        out
    }
}

impl Table {
    fn html(&self) -> String {
        let head: String = self.head.iter().map(|name| format!("<th>{name}")).collect();
        let rows = self.rows.iter().map(|(anchor, row)| {
            let id = anchor.map_or_else(String::new, |anchor| format!(" id=\"{anchor}\""));
            let cells: String = row.iter().map(|cell| format!("<td>{}", inline(cell))).collect();
            format!("<tr{id}>{cells}\n")
        });
        format!("<table>\n<tr>{head}\n{}</table>", rows.collect::<String>())
    }
}

/// Escaped, with `` `code` `` as an element.
fn inline(text: &str) -> String {
    let mut parts = text.split('`');
    let mut out = escaped(parts.next().unwrap_or_default());
    for (index, part) in parts.enumerate() {
        out.push_str(if index % 2 == 0 { "<code>" } else { "</code>" });
        out.push_str(&escaped(part));
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_in_both_forms() {
        let mut page = Page::new("T");
        page.section("S");
        page.says("a `<b>` & c");
        let mut table = Table::new(["x", "y"]);
        table.row(Some("here"), ["`1`".into(), "2".into()]);
        page.shows(table);
        assert_eq!(
            page.markdown(),
            "# T\n\n## S\n\na `<b>` & c\n\n| x | y |\n| --- | --- |\n| `1` | 2 |\n"
        );
        let html = page.html();
        assert!(html.contains("<p>a <code>&lt;b&gt;</code> &amp; c</p>"), "{html}");
        assert!(html.contains("<tr id=\"here\"><td><code>1</code><td>2"), "{html}");
    }
}
