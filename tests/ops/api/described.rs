//! The answers, compared with `openapi.json`: each member is described, and each described member occurs.

use serde_json::Value;

fn description() -> Value {
    serde_json::from_str(include_str!("../../../src/console/api/openapi.json")).unwrap()
}

/// What a route reads, as it is described.
pub struct Read {
    pub path: String,
    /// The schema of its body.
    pub body: Option<Value>,
    /// The schemas of the parameters of its query.
    pub query: Option<Value>,
}

pub fn reads() -> Vec<Read> {
    let description = description();
    let mut all = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap();
        for (_, what) in methods.iter().filter(|(name, _)| *name != "parameters") {
            let body = &what["requestBody"]["content"]["application/json"]["schema"]["$ref"];
            let body = body.as_str().map(|name| {
                let name = name.rsplit('/').next().unwrap();
                description["components"]["schemas"][name].clone()
            });
            let given = what["parameters"].as_array().into_iter().flatten();
            let query: serde_json::Map<String, Value> = given
                .filter(|one| one["in"] == "query")
                .map(|one| (one["name"].as_str().unwrap().to_owned(), one["schema"].clone()))
                .collect();
            let query = (!query.is_empty()).then_some(Value::Object(query));
            all.push(Read { path: path.clone(), body, query });
        }
    }
    all
}

/// The paths at which a GET is described to tell the database's time.
pub fn timed() -> Vec<String> {
    let description = description();
    let is_timed = |methods: &Value| {
        let headers = &methods["get"]["responses"]["200"]["headers"];
        headers["Database-Time"]["schema"]["format"] == "date-time"
    };
    let paths = description["paths"].as_object().unwrap().iter();
    paths.filter(|(_, methods)| is_timed(methods)).map(|(path, _)| path.clone()).collect()
}

/// A value of this schema: of an object, with the members that it must have.
pub fn sample(schema: &Value) -> Value {
    if let Some(names) = schema["enum"].as_array() {
        return names[0].clone();
    }
    let one = schema["type"].as_array().map_or(&schema["type"], |several| &several[0]);
    match one.as_str() {
        // Any JSON.
        None => Value::Null,
        Some("string") if schema["format"] == "uuid" => uuid::Uuid::nil().to_string().into(),
        Some("string") if schema["pattern"].is_string() => "2h".into(),
        Some("string") => "x".into(),
        Some("integer") => schema["minimum"].as_u64().unwrap_or(1).into(),
        Some("boolean") => true.into(),
        Some("array") => Value::Array(Vec::new()),
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten();
            let members = required.map(|name| {
                let name = name.as_str().unwrap();
                (name.to_owned(), sample(&schema["properties"][name]))
            });
            Value::Object(members.collect())
        }
        Some(other) => panic!("what is a {other}?"),
    }
}

/// Asserts that a value has the named schema.
#[track_caller]
pub fn fits(name: &str, value: &Value) {
    let description = description();
    let schema = &description["components"]["schemas"][name];
    assert!(schema.is_object(), "no form {name}");
    if let Err(why) = check(&description, schema, value) {
        panic!("{value:#} is not a {name}: {why}");
    }
}

fn check(all: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        return check(all, &all["components"]["schemas"][name], value);
    }
    if let Some(forms) = schema["oneOf"].as_array() {
        let fitting = forms.iter().filter(|form| check(all, form, value).is_ok()).count();
        return (fitting == 1).then_some(()).ok_or(format!("{value} fits {fitting} of {forms:?}"));
    }
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = match &schema["type"] {
        Value::String(one) => one == is,
        Value::Array(several) => several.iter().any(|one| one == is),
        other => return Err(format!("a type is missing: {other}")),
    };
    if !allowed {
        return Err(format!("{value} is {is}, and not {}", schema["type"]));
    }
    if schema["enum"].as_array().is_some_and(|names| !names.contains(value)) {
        return Err(format!("{value} is none of {}", schema["enum"]));
    }
    match (schema["format"].as_str(), value.as_str()) {
        (Some("uuid"), Some(text)) => {
            uuid::Uuid::parse_str(text).map_err(|error| error.to_string())?;
        }
        (Some("date-time"), Some(text)) => {
            chrono::DateTime::parse_from_rfc3339(text).map_err(|error| error.to_string())?;
        }
        _ => {}
    }
    for element in value.as_array().into_iter().flatten() {
        check(all, &schema["items"], element)?;
    }
    if let Some(members) = value.as_object() {
        for (name, value) in members {
            let known =
                schema["properties"].get(name).ok_or(format!("`{name}` is not described"))?;
            check(all, known, value).map_err(|why| format!("{name}: {why}"))?;
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap();
            members.get(name).ok_or(format!("`{name}` is missing"))?;
        }
    }
    Ok(())
}
