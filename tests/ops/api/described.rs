//! The answers, compared with `openapi.json`: each member is described, and each described member occurs.

use serde_json::Value;

fn description() -> Value {
    serde_json::from_str(include_str!("../../../src/console/api/openapi.json")).unwrap()
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
