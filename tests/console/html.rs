//! The subset of HTML that the console writes: tags, links and forms.

use reqwest::Url;

/// A start tag, with its attributes in order.
#[derive(Debug)]
pub struct Tag {
    pub name: String,
    pub attributes: Vec<(String, String)>,
}

impl Tag {
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut all = self.attributes.iter();
        all.find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Every start tag of a page. Panics where a `<` begins none: a text that was not escaped.
pub fn tags(html: &str) -> Vec<Tag> {
    let mut tags = Vec::new();
    for (at, _) in html.match_indices('<') {
        let rest = &html[at + 1..];
        if rest.starts_with('/') || rest.starts_with("!DOCTYPE") {
            continue;
        }
        assert!(rest.starts_with(|c: char| c.is_ascii_lowercase()), "a raw <: {}", clip(rest));
        tags.push(tag(rest).0);
    }
    tags
}

/// An element of a page.
#[derive(Debug)]
pub struct Element {
    pub tag: Tag,
    /// Its place among the elements.
    pub parent: Option<usize>,
    /// The texts in it, those of the elements in it included.
    pub text: String,
}

/// The elements of a page, in order. Panics where a tag closes another than the last that is open.
pub fn elements(html: &str) -> Vec<Element> {
    let mut all: Vec<Element> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for (at, _) in html.match_indices('<') {
        let rest = &html[at + 1..];
        let behind = if let Some(end) = rest.strip_prefix('/') {
            let (name, behind) = end.split_once('>').unwrap();
            let last = open.pop().unwrap_or_else(|| panic!("</{name}> closes nothing"));
            assert_eq!(all[last].tag.name, name, "at {}", clip(rest));
            behind
        } else if rest.starts_with('!') {
            continue;
        } else {
            let (tag, behind) = tag(rest);
            let is_void = ["meta", "link", "input", "br", "img", "hr"].contains(&tag.name.as_str());
            let parent = open.last().copied();
            all.push(Element { tag, parent, text: String::new() });
            if !is_void {
                open.push(all.len() - 1);
            }
            behind
        };
        let text = &behind[..behind.find('<').unwrap_or(behind.len())];
        open.iter().for_each(|&element| all[element].text.push_str(text));
    }
    assert!(open.is_empty(), "not closed: {:?}", all[open[0]]);
    all
}

fn clip(text: &str) -> String {
    text.chars().take(80).collect()
}

/// The tag, and what follows it.
fn tag(mut rest: &str) -> (Tag, &str) {
    let end = rest.find([' ', '>']).unwrap();
    let name = rest[..end].to_owned();
    rest = &rest[end..];
    let mut attributes = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(behind) = rest.strip_prefix('>') {
            return (Tag { name, attributes }, behind);
        }
        let end = rest.find(['=', ' ', '>']).unwrap();
        let attribute = rest[..end].to_owned();
        rest = &rest[end..];
        let mut value = String::new();
        if let Some(quoted) = rest.strip_prefix("=\"") {
            let end = quoted.find('"').unwrap();
            value = unescaped(&quoted[..end]);
            rest = &quoted[end + 1..];
        }
        assert!(!rest.starts_with('='), "a value without quotes: {}", clip(rest));
        attributes.push((attribute, value));
    }
}

/// The texts of a page, without its tags, and without what was typed into a form, which keeps it as it was.
pub fn shown(html: &str) -> String {
    let mut texts = String::new();
    for part in html.split('<') {
        let (tag, text) = part.split_once('>').unwrap_or(("", part));
        let is_typed = tag.starts_with("textarea");
        texts.push_str(if is_typed { "" } else { text });
    }
    texts
}

pub fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// The targets of its links, resolved as a browser does.
pub fn links(page: &Url, html: &str) -> Vec<Url> {
    let all = tags(html);
    let hrefs = all.iter().filter(|tag| tag.name == "a" || tag.name == "link");
    let srcs = all.iter().filter_map(|tag| tag.get("src"));
    hrefs.filter_map(|tag| tag.get("href")).chain(srcs).map(|to| page.join(to).unwrap()).collect()
}

/// A form, as a browser would send it unchanged.
#[derive(Clone, Debug)]
pub struct Form {
    pub action: Url,
    pub is_post: bool,
    pub fields: Vec<(String, String)>,
    /// The names of the fields that may be filled in.
    pub names: Vec<String>,
}

impl Form {
    /// With this in a field.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.retain(|(other, _)| other != name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }
}

pub fn forms(page: &Url, html: &str) -> Vec<Form> {
    let bodies = html.split("<form").skip(1);
    bodies.map(|rest| form(page, &rest[..rest.find("</form>").unwrap()])).collect()
}

fn form(page: &Url, body: &str) -> Form {
    let whole = format!("<form{body}");
    let all = tags(&whole);
    let mut fields = Vec::new();
    let mut names = Vec::new();
    for tag in &all {
        let Some(name) = tag.get("name") else { continue };
        names.push(name.to_owned());
        match (tag.name.as_str(), tag.get("type")) {
            ("input", Some("radio" | "checkbox")) if tag.get("checked").is_none() => {}
            ("input", _) => {
                fields.push((name.to_owned(), tag.get("value").unwrap_or_default().to_owned()));
            }
            ("textarea", _) => {
                let marker = format!(" name=\"{name}\"");
                let is_it = |rest: &&str| rest[..rest.find('>').unwrap()].contains(&marker);
                let text = whole.split("<textarea").skip(1).find(is_it).unwrap();
                let text = &text[text.find('>').unwrap() + 1..text.find("</textarea>").unwrap()];
                let text = unescaped(text).replace("\r\n", "\n");
                // A browser drops the first line break, and sends each other one as two characters.
                let text = text.strip_prefix('\n').unwrap_or(&text).replace('\n', "\r\n");
                fields.push((name.to_owned(), text));
            }
            ("select", _) => {
                let inside = whole.split(&format!(" name=\"{name}\"")).nth(1).unwrap();
                let options =
                    tags(&inside[inside.find('<').unwrap()..inside.find("</select>").unwrap()]);
                let chosen = options.iter().find(|option| option.get("selected").is_some());
                let value = chosen.or(options.first()).and_then(|option| option.get("value"));
                fields.push((name.to_owned(), value.unwrap_or_default().to_owned()));
            }
            _ => {}
        }
    }
    Form {
        action: page.join(all[0].get("action").unwrap()).unwrap(),
        is_post: all[0].get("method") == Some("post"),
        fields,
        names,
    }
}
