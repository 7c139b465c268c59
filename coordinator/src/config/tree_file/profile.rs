//! `profile`: the name of a built-in profile, a file, or an inline profile.

use std::path::Path;

use super::super::diagnostics::ErrorKind;
use super::super::profile::{
    ExploreRule, GradeThresholds, GuardedMetric, MetricDirection, ScoreMetric, ScoringProfile,
};
use super::super::reader::{Field, Fields};

keys! {
    /// The keys of a profile.
    pub(crate) table ProfileKeys {
        name: Value("text"), "inline", "Name of the profile.";
        id_column: Value("text"), "config_id", "Column with the configuration number.";
        status_column: Value("text"), "status", "Column with the status of a configuration.";
        ok_values: Value("list of texts"), "ok", "Status values that mean success.";
        primary: Value("table"), "", "The metric that must not get worse.",
            "primary" => GuardedKeys::ALL;
        metrics: Value("list of tables"), "", "The metrics of the score.",
            "metrics[]" => ProfileMetricKeys::ALL;
        risk: Value("list of tables"), "", "Metrics that rule out further exploration if they fall.";
        clamp: Value("number"), "2.0", "Largest relative improvement that counts.";
        eps: Value("number"), "1e-12", "Baselines up to this magnitude count as zero.";
        explore: Value("table"), "", "Conditions for exploring further.", "explore" => ExploreKeys::ALL;
        grades: Value("table"), "", "Minimum scores of the grades.", "grades" => GradeKeys::ALL;
    }

    /// The keys of every metric of a profile.
    pub(crate) table ColumnKeys {
        column: Value("text"), "", "Column of the metric.";
        direction: Value("higher|lower"), "higher", "Better direction.";
    }

    /// The keys of a metric that must not get worse.
    pub(crate) table GuardedKeys {
        "" => ColumnKeys::ALL;
        max_rel_drop: Value("number"), "0.05", "Largest allowed relative fall.";
    }

    /// The keys of a metric of the score.
    pub(crate) table ProfileMetricKeys {
        "" => ColumnKeys::ALL;
        weight: Value("number"), "", "Weight in the score.";
    }

    /// The keys of `explore`.
    pub(crate) table ExploreKeys {
        min_score: Value("number"), "0.03", "Minimum score.";
        min_positive: Value("integer"), "2", "Alternatively, minimum number of improved metrics.";
        min_margin: Value("integer"), "2",
            "With `min_positive`: minimum surplus of improved over worse metrics.";
    }

    /// The keys of `grades`.
    pub(crate) table GradeKeys {
        strong: Value("number"), "0.10", "Minimum score for strong.";
        promising: Value("number"), "0.03", "Minimum score for promising.";
        mixed: Value("number"), "-0.02", "Minimum score for mixed; lower scores are weak.";
    }
}

const DIRECTIONS: &[(&str, MetricDirection)] =
    &[("higher", MetricDirection::Higher), ("lower", MetricDirection::Lower)];

/// Reads the profile; `returns` if absent.
pub(super) fn read(field: &Field<'_>, base: &Path) -> ScoringProfile {
    let default = || ScoringProfile::built_in("returns").expect("it is built in");
    if !field.is_present() {
        return default();
    }
    if !field.is_text() {
        return read_inline(field).unwrap_or_else(default);
    }
    let Some(name) = field.non_empty_string() else { return default() };
    let path = base.join(&name);
    let found = match ScoringProfile::built_in(&name) {
        Some(profile) => Ok(profile),
        None => ScoringProfile::load(&path.to_string_lossy()),
    };
    found.unwrap_or_else(|error| {
        let mut words = error.to_string();
        if let Some(cause) = std::error::Error::source(&error) {
            words = format!("{words}: {cause}");
        }
        let expected = format!("one of {}, or a file", ScoringProfile::BUILT_IN.join(", "));
        field.reject(ErrorKind::BadValue, words, expected);
        default()
    })
}

fn read_inline(field: &Field<'_>) -> Option<ScoringProfile> {
    let mut fields = field.mapping()?;
    let model = ScoringProfile::built_in("returns").expect("it is built in");
    let mut column = |key, default: &str| {
        fields.take(key).non_empty_string().unwrap_or_else(|| default.to_owned())
    };
    let [name, id_column, status_column] = [
        column(ProfileKeys::name, "inline"),
        column(ProfileKeys::id_column, &model.id_column),
        column(ProfileKeys::status_column, &model.status_column),
    ];
    let words = fields.take(ProfileKeys::ok_values);
    let ok_values = words.is_present().then(|| words.items().unwrap_or_default());
    let number = |field: Field<'_>, default| field.number("a number", |_| true).unwrap_or(default);
    let primary = fields.take(ProfileKeys::primary);
    primary.required("a mapping with `column`");
    let metrics = fields.take(ProfileKeys::metrics);
    metrics.required("a list of mappings with `column` and `weight`");
    let profile = ScoringProfile {
        name,
        id_column,
        status_column,
        ok_values: ok_values.map_or(model.ok_values, |words| {
            words.iter().filter_map(Field::non_empty_string).collect()
        }),
        primary: guarded(&primary).unwrap_or(model.primary),
        metrics: metrics.items().unwrap_or_default().iter().filter_map(metric).collect(),
        risk: fields
            .take(ProfileKeys::risk)
            .items()
            .unwrap_or_default()
            .iter()
            .filter_map(guarded)
            .collect(),
        clamp: number(fields.take(ProfileKeys::clamp), model.clamp),
        eps: number(fields.take(ProfileKeys::eps), model.eps),
        explore: explore(&fields.take(ProfileKeys::explore)),
        grades: grades(&fields.take(ProfileKeys::grades)),
    };
    fields.finish();
    if let Err(fault) = profile.check().map_err(|fault| (fault.key, fault.expected)) {
        field.reject(ErrorKind::BadValue, format!("an invalid `{}`", fault.0), fault.1);
    }
    Some(profile)
}

fn column(fields: &mut Fields<'_>) -> (Option<String>, MetricDirection) {
    let column = fields.take(ColumnKeys::column);
    column.required("the name of a column");
    (
        column.non_empty_string(),
        fields.take(ColumnKeys::direction).keyword(DIRECTIONS).unwrap_or_default(),
    )
}

fn guarded(field: &Field<'_>) -> Option<GuardedMetric> {
    let mut fields = field.mapping().filter(|_| field.is_present())?;
    let (column, direction) = column(&mut fields);
    let drop = fields.take(GuardedKeys::max_rel_drop).number("a number of 0 or more", |v| v >= 0.0);
    fields.finish();
    Some(GuardedMetric { column: column?, direction, max_rel_drop: drop.unwrap_or(0.05) })
}

fn metric(field: &Field<'_>) -> Option<ScoreMetric> {
    let mut fields = field.mapping()?;
    let (column, direction) = column(&mut fields);
    let weight = fields.take(ProfileMetricKeys::weight);
    weight.required("the weight in the score");
    let weight = weight.number("a number above 0", |v| v > 0.0);
    fields.finish();
    Some(ScoreMetric { column: column?, direction, weight: weight? })
}

fn explore(field: &Field<'_>) -> ExploreRule {
    let default = ExploreRule::default();
    let Some(mut fields) = field.mapping().filter(|_| field.is_present()) else { return default };
    let count = |field: Field<'_>, default| {
        field.integer(&(0..=1000)).and_then(|n| u32::try_from(n).ok()).unwrap_or(default)
    };
    let explore = ExploreRule {
        min_score: fields
            .take(ExploreKeys::min_score)
            .number("a number", |_| true)
            .unwrap_or(default.min_score),
        min_positive: count(fields.take(ExploreKeys::min_positive), default.min_positive),
        min_margin: count(fields.take(ExploreKeys::min_margin), default.min_margin),
    };
    fields.finish();
    explore
}

fn grades(field: &Field<'_>) -> GradeThresholds {
    let default = GradeThresholds::default();
    let Some(mut fields) = field.mapping().filter(|_| field.is_present()) else { return default };
    let mut number =
        |key, default| fields.take(key).number("a number", |_| true).unwrap_or(default);
    let grades = GradeThresholds {
        strong: number(GradeKeys::strong, default.strong),
        promising: number(GradeKeys::promising, default.promising),
        mixed: number(GradeKeys::mixed, default.mixed),
    };
    fields.finish();
    grades
}
