//! `guardrails`: bounds on metrics, as metadata of a job.

use rollout_protocol::limits;
use rollout_protocol::spec::guardrail::Guardrail;

use super::super::diagnostics::ErrorKind;
use super::super::reader::Field;

keys! {
    /// The keys of a guardrail.
    pub(crate) table GuardrailKeys {
        metric_id: Value("text"), "required", "Metric, for instance `cost_usd`.";
        max: Value("number"), "none", "Largest accepted value, in the unit of the metric.";
    }
}

/// The guardrails, in file order.
pub(crate) fn read(field: &Field<'_>) -> Vec<Guardrail> {
    let items = field.items().unwrap_or_default();
    if items.len() > limits::GUARDRAILS {
        let found = format!("{} guardrails", items.len());
        let expected = format!("at most {}", limits::GUARDRAILS);
        field.reject(ErrorKind::BadValue, found, expected);
        return Vec::new();
    }
    let mut guardrails: Vec<Guardrail> = Vec::new();
    for item in items {
        let Some(mut fields) = item.mapping() else { continue };
        let id = fields.take(GuardrailKeys::metric_id);
        let max = fields.take(GuardrailKeys::max).number("a finite number", f64::is_finite);
        id.required("the name of a metric");
        if let Some(metric_id) = metric_id(&id) {
            if guardrails.iter().any(|known| known.metric_id == metric_id) {
                id.reject(
                    ErrorKind::DuplicateName,
                    format!("`{metric_id}`, which has a guardrail already"),
                    "one guardrail for each metric",
                );
            }
            guardrails.push(Guardrail { metric_id, max });
        }
        fields.finish();
    }
    guardrails
}

fn metric_id(field: &Field<'_>) -> Option<String> {
    let id = field.non_empty_string()?;
    if id.len() > limits::HARNESS_NAME_BYTES || id.chars().any(char::is_control) {
        let most = limits::HARNESS_NAME_BYTES;
        field.bad_value(&format!("at most {most} bytes without control characters"));
        return None;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    #[test]
    fn guardrails_keep_file_order() {
        let (guardrails, faults, _) =
            read_field("[{metric_id: turn_count}, {metric_id: cost_usd, max: 2.5}]", read);
        assert_eq!(faults, []);
        let watched = Guardrail { metric_id: "turn_count".to_owned(), max: None };
        let bounded = Guardrail { metric_id: "cost_usd".to_owned(), max: Some(2.5) };
        assert_eq!(guardrails, [watched, bounded]);
        assert_eq!(read_field("~", read).0, []);
    }

    #[test]
    fn guardrail_errors_are_all_reported() {
        let long = "m".repeat(limits::HARNESS_NAME_BYTES + 1);
        let text = format!(
            "[{{max: 1}}, {{metric_id: a, max: .inf}}, {{metric_id: a}}, {{metric_id: {long}}}, \
             {{metric_id: b, min: 1}}]"
        );
        let faults = read_field(&text, read).1;
        let expected = [
            ("x[0].metric_id", ErrorKind::MissingKey),
            ("x[1].max", ErrorKind::BadValue),
            ("x[2].metric_id", ErrorKind::DuplicateName),
            ("x[3].metric_id", ErrorKind::BadValue),
            ("x[4].min", ErrorKind::UnknownKey),
        ];
        let expected = expected.map(|(key, kind)| (key.to_owned(), kind));
        assert_eq!(faults, expected);
    }

    #[test]
    fn guardrails_beyond_limit_are_refused() {
        let all: Vec<_> =
            (0..=limits::GUARDRAILS).map(|n| format!("{{metric_id: m{n}}}")).collect();
        let (guardrails, faults, _) = read_field(&format!("[{}]", all.join(", ")), read);
        assert_eq!((guardrails, faults), (vec![], vec![("x".to_owned(), ErrorKind::BadValue)]));
    }
}
