//! Patches: JSON merge patch, strategic merge patch and JSON patch.

use serde_json::Value;

use super::status::ApiError;

/// Applies the patch of a request with a content type.
pub(super) fn apply(object: &mut Value, content_type: &str, patch: &Value) -> Result<(), ApiError> {
    match content_type.split(';').next().unwrap_or_default().trim() {
        "application/merge-patch+json" => merge(object, patch, None),
        // Field owners are not kept: a field that is no longer applied stays.
        "application/apply-patch+yaml" | "application/strategic-merge-patch+json" => {
            merge(object, patch, Some(merge_key));
        }
        "application/json-patch+json" => return json_patch(object, patch),
        other => {
            let message = format!(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json, \
                 application/strategic-merge-patch+json (got {other})"
            );
            return Err(ApiError::new(415, "UnsupportedMediaType", message));
        }
    }
    Ok(())
}

/// Key by which a strategic merge joins the elements of a list.
fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "containers" | "initContainers" | "env" | "volumes" | "imagePullSecrets" => Some("name"),
        "conditions" => Some("type"),
        "ownerReferences" => Some("uid"),
        _ => None,
    }
}

fn merge(target: &mut Value, patch: &Value, keys: Option<fn(&str) -> Option<&'static str>>) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    for (field, value) in fields {
        if value.is_null() {
            if let Some(target) = target.as_object_mut() {
                target.remove(field);
            }
            continue;
        }
        let key = keys.and_then(|keys| keys(field));
        match (key, value.as_array(), target[field].as_array_mut()) {
            (Some(key), Some(elements), Some(list)) => merge_list(list, elements, key, keys),
            _ => merge(&mut target[field], value, keys),
        }
    }
}

fn merge_list(
    list: &mut Vec<Value>,
    elements: &[Value],
    key: &str,
    keys: Option<fn(&str) -> Option<&'static str>>,
) {
    for element in elements {
        let place = list.iter().position(|old| old[key] == element[key]);
        if element["$patch"] == "delete" {
            if let Some(place) = place {
                list.remove(place);
            }
        } else if let Some(place) = place {
            merge(&mut list[place], element, keys);
        } else {
            list.push(element.clone());
        }
    }
}

fn json_patch(object: &mut Value, patch: &Value) -> Result<(), ApiError> {
    let malformed = || ApiError::bad_request("json patch is malformed");
    for operation in patch.as_array().ok_or_else(malformed)? {
        let path = operation["path"].as_str().ok_or_else(malformed)?;
        let value = &operation["value"];
        let failed = |what: &str| {
            let message = format!(
                "the server rejected our request due to an error in our request: \
                                   {what}: {path}"
            );
            ApiError::new(422, "Invalid", message)
        };
        match operation["op"].as_str() {
            Some("add") => put(object, path, value, true).ok_or_else(|| failed("add"))?,
            Some("replace") => {
                object.pointer(path).ok_or_else(|| failed("replace of a missing key"))?;
                put(object, path, value, false).ok_or_else(|| failed("replace"))?;
            }
            Some("remove") => {
                take(object, path).ok_or_else(|| failed("remove of a missing key"))?;
            }
            Some("test") if object.pointer(path) == Some(value) => {}
            Some("test") => return Err(failed("testing path failed")),
            _ => return Err(malformed()),
        }
    }
    Ok(())
}

fn split(path: &str) -> Option<(&str, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    Some((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn put(object: &mut Value, path: &str, value: &Value, insert: bool) -> Option<()> {
    let (parent, last) = split(path)?;
    match object.pointer_mut(parent)? {
        Value::Object(fields) => {
            fields.insert(last, value.clone());
        }
        Value::Array(list) if last == "-" => list.push(value.clone()),
        Value::Array(list) => {
            let place: usize = last.parse().ok()?;
            if insert && place <= list.len() {
                list.insert(place, value.clone());
            } else {
                *list.get_mut(place)? = value.clone();
            }
        }
        _ => return None,
    }
    Some(())
}

fn take(object: &mut Value, path: &str) -> Option<()> {
    let (parent, last) = split(path)?;
    match object.pointer_mut(parent)? {
        Value::Object(fields) => {
            fields.remove(&last)?;
        }
        Value::Array(list) => {
            let place: usize = last.parse().ok()?;
            if place >= list.len() {
                return None;
            }
            list.remove(place);
        }
        _ => return None,
    }
    Some(())
}
