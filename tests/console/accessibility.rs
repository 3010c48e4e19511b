//! The rules of accessibility that the text of a page shows, by hand: each with a page that breaks it. What needs a
//! layout (contrast, sizes, the focus) is measured in the browser.

use std::collections::HashSet;

use super::html::{Element, elements};

/// Panics with each rule that the page breaks.
#[track_caller]
pub fn check_accessibility_of(html: &str) {
    let faults = faults(html);
    assert!(faults.is_empty(), "{faults:#?} in {html}");
}

fn faults(html: &str) -> Vec<String> {
    let page = Page(elements(html));
    let rules = [
        Page::language_and_title,
        Page::zoom,
        Page::landmarks,
        Page::headings,
        Page::ids,
        Page::labels,
        Page::names,
        Page::lists,
        Page::tables,
        Page::aria,
        Page::pictures,
        Page::focus,
    ];
    rules.into_iter().flat_map(|rule| rule(&page)).collect()
}

struct Page(Vec<Element>);

impl Page {
    fn all(&self) -> impl Iterator<Item = (usize, &Element)> {
        self.0.iter().enumerate()
    }

    fn called(&self, names: &[&str]) -> impl Iterator<Item = (usize, &Element)> {
        self.all().filter(|(_, one)| names.contains(&one.tag.name.as_str()))
    }

    fn parent(&self, one: &Element) -> &str {
        one.parent.map_or("", |parent| &self.0[parent].tag.name)
    }

    fn children(&self, of: usize) -> impl Iterator<Item = (usize, &Element)> {
        self.all().filter(move |(_, one)| one.parent == Some(of))
    }

    fn is_in(&self, one: &Element, names: &[&str]) -> bool {
        let above = std::iter::successors(one.parent, |&at| self.0[at].parent);
        above.map(|at| &self.0[at]).any(|above| names.contains(&above.tag.name.as_str()))
    }

    /// The page says in which language it is, and what it is about.
    fn language_and_title(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.called(&["html"]).all(|(_, one)| one.tag.get("lang") != Some("en")) {
            faults.push("no language".to_owned());
        }
        if self.called(&["title"]).all(|(_, one)| one.text.trim().is_empty()) {
            faults.push("no title".to_owned());
        }
        faults
    }

    /// A reader may enlarge it.
    fn zoom(&self) -> Vec<String> {
        let viewports =
            self.called(&["meta"]).filter(|(_, one)| one.tag.get("name") == Some("viewport"));
        let content: Vec<&str> = viewports.filter_map(|(_, one)| one.tag.get("content")).collect();
        let is_kept =
            |text: &&str| text.contains("user-scalable") || text.contains("maximum-scale");
        let is_wide = content.iter().any(|text| text.contains("width=device-width"));
        match is_wide && !content.iter().any(is_kept) {
            true => Vec::new(),
            false => vec![format!("the page cannot be enlarged: {content:?}")],
        }
    }

    fn landmarks(&self) -> Vec<String> {
        let count = |name| self.called(&[name]).count();
        let once = ["h1", "main", "header", "footer", "title"].into_iter();
        once.filter(|name| count(name) != 1)
            .map(|name| format!("{} of {name}", count(name)))
            .collect()
    }

    /// No level is left out.
    fn headings(&self) -> Vec<String> {
        let mut level = 0;
        let mut faults = Vec::new();
        for (_, one) in self.called(&["h1", "h2", "h3", "h4", "h5", "h6"]) {
            let next = u32::from(one.tag.name.as_bytes()[1] - b'0');
            if next > level + 1 || one.text.trim().is_empty() {
                faults.push(format!("h{next} behind h{level}: {:?}", one.text));
            }
            level = next;
        }
        faults
    }

    /// An id is given once, and what is named by one is there.
    fn ids(&self) -> Vec<String> {
        let mut ids = HashSet::new();
        let twice =
            self.all().filter_map(|(_, one)| one.tag.get("id")).filter(|id| !ids.insert(*id));
        let mut faults: Vec<String> = twice.map(|id| format!("the id {id} twice")).collect();
        for (_, one) in self.all() {
            for by in ["aria-describedby", "aria-labelledby", "aria-controls", "for"] {
                for id in one.tag.get(by).into_iter().flat_map(str::split_whitespace) {
                    if !ids.contains(id) {
                        faults.push(format!("{by} names {id}, which is not there"));
                    }
                }
            }
        }
        faults
    }

    /// Each field has a label with a text; each group of fields has a legend.
    fn labels(&self) -> Vec<String> {
        let labels = self.called(&["label"]).filter(|(_, one)| !one.text.trim().is_empty());
        let labelled: HashSet<_> = labels.filter_map(|(_, one)| one.tag.get("for")).collect();
        let fields = self.called(&["input", "select", "textarea"]);
        let seen = fields.filter(|(_, one)| one.tag.get("type") != Some("hidden"));
        let is_bare = |one: &Element| {
            let has = one.tag.get("id").is_some_and(|id| labelled.contains(id));
            !has && !self.is_in(one, &["label"])
        };
        let bare = seen.filter(|(_, one)| is_bare(one));
        let mut faults: Vec<String> =
            bare.map(|(_, one)| format!("no label: {:?}", one.tag)).collect();
        for (at, _) in self.called(&["fieldset"]) {
            if self.children(at).next().is_none_or(|(_, first)| first.tag.name != "legend") {
                faults.push("a group of fields without a legend".to_owned());
            }
        }
        faults
    }

    /// What can be pressed says what it does; the same landmark twice, which of them it is.
    fn names(&self) -> Vec<String> {
        let pressed = self.called(&["a", "button", "summary"]);
        let is_named =
            |one: &Element| ["aria-label", "title"].iter().any(|name| one.tag.get(name).is_some());
        let bare = pressed.filter(|(_, one)| one.text.trim().is_empty() && !is_named(one));
        let mut faults: Vec<String> =
            bare.map(|(_, one)| format!("no name: {:?}", one.tag)).collect();
        for (_, one) in self.called(&["nav"]) {
            if one.tag.get("aria-label").is_none() {
                faults.push("a nav without a name".to_owned());
            }
        }
        faults
    }

    fn lists(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (at, one) in self.called(&["ul", "ol"]) {
            let others = self.children(at).filter(|(_, child)| child.tag.name != "li");
            faults
                .extend(others.map(|(_, child)| format!("{} in {}", child.tag.name, one.tag.name)));
        }
        for (_, one) in self.called(&["li"]) {
            if !["ul", "ol"].contains(&self.parent(one)) {
                faults.push(format!("li in {}", self.parent(one)));
            }
        }
        for (at, _) in self.called(&["dl"]) {
            for (group, one) in self.children(at) {
                let names: Vec<_> = self.children(group).map(|(_, one)| &*one.tag.name).collect();
                if one.tag.name != "div" || names != ["dt", "dd"] {
                    faults.push(format!("{} with {names:?} in dl", one.tag.name));
                }
            }
        }
        faults
    }

    /// A table has a caption, each column a head, and each row a cell for each head.
    fn tables(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (at, _) in self.called(&["table"]) {
            let parts: Vec<_> = self.children(at).map(|(_, one)| &*one.tag.name).collect();
            if parts != ["caption", "thead", "tbody"] {
                faults.push(format!("a table of {parts:?}"));
            }
            let rows: Vec<(bool, Vec<&Element>)> = self
                .children(at)
                .filter(|(_, part)| part.tag.name != "caption")
                .flat_map(|(part, head)| {
                    let is_head = head.tag.name == "thead";
                    self.children(part).map(move |(row, _)| (is_head, row))
                })
                .map(|(is_head, row)| (is_head, self.children(row).map(|(_, cell)| cell).collect()))
                .collect();
            let heads =
                rows.iter().find(|(is_head, _)| *is_head).map_or(0, |(_, cells)| cells.len());
            for (is_head, cells) in &rows {
                let is_whole = cells.iter().all(|cell| match is_head {
                    true => cell.tag.name == "th" && cell.tag.get("scope") == Some("col"),
                    false => cell.tag.name == "td",
                });
                if !is_whole || cells.len() != heads {
                    faults.push(format!("a row of {} cells under {heads} heads", cells.len()));
                }
            }
        }
        faults
    }

    /// Attributes and roles that browsers know, with values that they know, on elements that take them.
    fn aria(&self) -> Vec<String> {
        let roles = [
            "alert",
            "status",
            "search",
            "img",
            "table",
            "rowgroup",
            "row",
            "columnheader",
            "cell",
        ];
        // To others, a name is not told.
        let takes_a_name = [
            "nav", "section", "form", "ol", "ul", "a", "button", "input", "select", "textarea",
            "table", "main",
        ];
        let mut faults = Vec::new();
        for (_, one) in self.all() {
            for (name, value) in &one.tag.attributes {
                let is_known = match name.as_str() {
                    "aria-current" => ["page", "true", "step"].contains(&value.as_str()),
                    "aria-hidden" => ["true", "false"].contains(&value.as_str()),
                    "aria-describedby" | "aria-labelledby" => !value.is_empty(),
                    "aria-label" => {
                        let has_role = one.tag.get("role").is_some();
                        !value.trim().is_empty()
                            && (has_role || takes_a_name.contains(&one.tag.name.as_str()))
                    }
                    "role" => roles.contains(&value.as_str()),
                    other => !other.starts_with("aria-"),
                };
                if !is_known {
                    faults.push(format!("{name}={value:?} of {}", one.tag.name));
                }
            }
        }
        faults
    }

    fn pictures(&self) -> Vec<String> {
        let is_told = |one: &Element| {
            let is_named =
                one.tag.get("role") == Some("img") && one.tag.get("aria-label").is_some();
            is_named || one.tag.get("aria-hidden") == Some("true")
        };
        let bare = self.called(&["svg", "img"]).filter(|(_, one)| !is_told(one));
        bare.map(|(_, one)| format!("a picture without a name: {:?}", one.tag)).collect()
    }

    /// The tab key goes through the page in its order, and nothing that is pressed is in something else that is.
    fn focus(&self) -> Vec<String> {
        let is_in_order = |one: &Element| {
            one.tag.get("tabindex").is_none_or(|index| ["0", "-1"].contains(&index))
        };
        let out = self.all().filter(|(_, one)| !is_in_order(one));
        let mut faults: Vec<String> =
            out.map(|(_, one)| format!("out of order: {:?}", one.tag)).collect();
        let pressed = ["a", "button", "input", "select", "textarea"];
        let inside = self.called(&pressed).filter(|(_, one)| self.is_in(one, &["a", "button"]));
        faults.extend(inside.map(|(_, one)| format!("inside of another: {:?}", one.tag)));
        faults
    }
}

const GOOD: &str = r#"<!DOCTYPE html><html lang="en"><head>
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Title</title></head><body>
<header><a href="x">Home</a><nav aria-label="Parts"><ul><li><a href="y" aria-current="page">Part</a></li></ul></nav></header>
<main id="main" tabindex="-1"><h1>One</h1><h2>Two</h2>
<form action="x"><fieldset><legend>Fields</legend><label for="f">Field</label>
<input id="f" name="f" aria-describedby="hint"><p id="hint">Hint</p></fieldset><button>Go</button></form>
<ol><li>One</li></ol><dl><div><dt>Name</dt><dd>Value</dd></div></dl>
<table role="table"><caption>Rows</caption><thead><tr><th scope="col">A</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>
<svg role="img" aria-label="A chart"></svg></main><footer></footer></body></html>"#;

/// Each rule refuses a page that breaks it, and no rule the page that breaks none.
#[test]
fn each_rule_of_accessibility_refuses_what_breaks_it() {
    assert_eq!(faults(GOOD), Vec::<String>::new());
    for (what, broken, told) in [
        (" lang=\"en\"", "", "no language"),
        ("<title>Title", "<title> ", "no title"),
        ("initial-scale=1", "maximum-scale=1", "cannot be enlarged"),
        ("width=device-width, ", "", "cannot be enlarged"),
        ("<footer></footer>", "", "0 of footer"),
        ("<h2>Two</h2>", "<h1>Two</h1>", "2 of h1"),
        ("<h2>Two</h2>", "<h3>Two</h3>", "h3 behind h1"),
        ("<h2>Two</h2>", "<h2></h2>", "h2 behind h1"),
        ("id=\"hint\"", "id=\"f\"", "the id f twice"),
        ("aria-describedby=\"hint\"", "aria-describedby=\"no\"", "names no"),
        ("for=\"f\"", "for=\"g\"", "names g"),
        ("for=\"f\">Field", ">Field", "no label"),
        ("for=\"f\">Field", "for=\"f\"> ", "no label"),
        ("<legend>Fields</legend>", "", "without a legend"),
        (">Home</a>", "></a>", "no name"),
        (">Go</button>", "> </button>", "no name"),
        (" aria-label=\"Parts\"", "", "a nav without a name"),
        ("<ol><li>One</li></ol>", "<ol><p>One</p></ol>", "p in ol"),
        ("<ol><li>One</li></ol>", "<li>One</li>", "li in main"),
        ("<dt>Name</dt>", "", "in dl"),
        ("<div><dt>Name</dt><dd>Value</dd></div>", "<dt>Name</dt>", "in dl"),
        ("<caption>Rows</caption>", "", "a table of"),
        ("<th scope=\"col\">", "<th>", "a row of 1 cells"),
        ("<td>1</td>", "<td>1</td><td>2</td>", "a row of 2 cells under 1"),
        ("<td>1</td>", "", "a row of 0 cells under 1"),
        ("aria-current=\"page\"", "aria-current=\"here\"", "aria-current"),
        ("aria-current=\"page\"", "aria-curent=\"page\"", "aria-curent"),
        ("role=\"table\"", "role=\"tabel\"", "role"),
        ("<p id", "<p aria-label=\"Hint\" id", "aria-label"),
        (" aria-label=\"A chart\"", "", "a picture without a name"),
        ("tabindex=\"-1\"", "tabindex=\"3\"", "out of order"),
        ("<a href=\"x\">Home</a>", "<a href=\"x\"><button>Home</button></a>", "inside of another"),
    ] {
        assert!(GOOD.contains(what), "{what}");
        let faults = faults(&GOOD.replacen(what, broken, 1));
        assert!(faults.iter().any(|fault| fault.contains(told)), "{what} -> {broken}: {faults:?}");
    }
}
