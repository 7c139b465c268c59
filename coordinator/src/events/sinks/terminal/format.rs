//! Formatting of numbers, durations and bars for the terminal.

use std::time::Duration;

/// The shortest duration that is given in seconds.
const TENTH: Duration = Duration::from_millis(100);

/// A number with at most four decimals, without trailing zeros.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() || value.abs() >= 1e15 {
        return format!("{value:e}");
    }
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// A cost beside calls whose cost is not known: `unknown`, or a lower bound.
pub(crate) fn cost(known: f64, unpriced_calls: u64) -> String {
    match unpriced_calls {
        0 => number(known),
        _ if known > 0.0 => format!("at least {}", number(known)),
        _ => "unknown".to_owned(),
    }
}

/// A number, or a dash for `None`.
pub(crate) fn number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// A share as a percentage, or a dash. Never rounded up to 100 % or down to 0 %.
pub(crate) fn percent(share: Option<f64>) -> String {
    let Some(share) = share else { return "-".to_owned() };
    let tenths = (share * 1000.0).round();
    let tenths = match share {
        _ if share > 0.0 && tenths < 1.0 => 1.0,
        _ if share < 1.0 && tenths > 999.0 => 999.0,
        _ => tenths,
    };
    format!("{}%", number(tenths / 10.0))
}

/// A duration: `38ms`, `0.4s`, `12s`, `2m 10s`, `1h 05m`, `3d 04h`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if time.is_zero() => "0s".to_owned(),
        0 if time < TENTH => format!("{}ms", time.as_millis().max(1)),
        0..10 => format!("{:.1}s", (time.as_secs_f64() * 10.0).floor() / 10.0),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Seconds with one decimal, and with three below a tenth.
pub(crate) fn seconds(seconds: f64) -> String {
    if seconds < TENTH.as_secs_f64() { format!("{seconds:.3}") } else { format!("{seconds:.1}") }
}

/// Settled trials per second, minute or hour, in the shortest unit with a rate of at least one.
pub(super) fn rate(count: u64, time: Duration) -> Option<String> {
    let per_second = count as f64 / time.as_secs_f64();
    if count == 0 || !per_second.is_finite() {
        return None;
    }
    let (value, unit) = match per_second {
        r if r >= 1.0 => (r, "s"),
        r if r * 60.0 >= 1.0 => (r * 60.0, "min"),
        r => (r * 3600.0, "h"),
    };
    Some(if value >= 100.0 { format!("{value:.0}/{unit}") } else { format!("{value:.1}/{unit}") })
}

/// At most `width` columns of `text`; a truncated text ends with `…`.
pub(super) fn fit(text: &str, width: usize) -> String {
    console::truncate_str(text, width, "…").into_owned()
}

/// The text in lines of at most `width` columns, further ones after `indent` blanks. Lines end between
/// words. A word that is longer stays whole, and so does what backticks enclose: it can be copied.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let lines = text.split('\n').map(|line| wrapped_line(line, &words(line, false), width, indent));
    lines.collect::<Vec<_>>().join("\n")
}

/// The text of a cell in lines of at most `width` columns: names may also end after a slash.
pub(super) fn wrapped_cell(text: &str, width: usize) -> String {
    wrapped_line(text, &words(text, true), width, 0)
}

/// The widest part of the text of a cell that stays whole.
pub(super) fn widest_part(text: &str) -> usize {
    let parts = words(text, true).into_iter();
    parts.map(|part| console::measure_text_width(part.trim_end())).max().unwrap_or_default()
}

fn wrapped_line(line: &str, words: &[&str], width: usize, indent: usize) -> String {
    if console::measure_text_width(line) <= width {
        return line.to_owned();
    }
    let (mut text, mut used, mut has_word) = (String::new(), 0, false);
    for word in words {
        let columns = console::measure_text_width(word.trim_end());
        if has_word && used + columns > width {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            used = indent;
        }
        text.push_str(word);
        used += console::measure_text_width(word);
        has_word |= columns > 0;
    }
    text.truncate(text.trim_end().len());
    text
}

/// The words of a line, each with the blanks after it. Nothing between backticks is separated. With
/// `of_cell`, a slash ends a word, too.
fn words(line: &str, of_cell: bool) -> Vec<&str> {
    let (mut words, mut start, mut quoted, mut previous) = (Vec::new(), 0, false, None);
    // A single backtick encloses nothing.
    let mut backticks = line.matches('`').count();
    for (at, character) in line.char_indices() {
        let is_start = match previous {
            Some(' ') => character != ' ',
            // A name is not empty.
            Some('/') => of_cell && !matches!(character, ' ' | '/') && start + 1 < at,
            _ => false,
        };
        if is_start && !quoted {
            words.push(&line[start..at]);
            start = at;
        }
        if character == '`' {
            backticks -= 1;
            quoted = !quoted && backticks > 0;
        }
        previous = Some(character);
    }
    words.push(&line[start..]);
    words
}

/// A bar of `width` columns, `done` of `total` filled.
pub(super) fn bar(done: u64, total: u64, width: usize) -> String {
    let share = if total == 0 { 1.0 } else { done as f64 / total as f64 };
    let filled = ((share * width as f64).floor() as usize).min(width);
    "█".repeat(filled) + &"░".repeat(width - filled)
}

/// `1 trial`, `2 trials`.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_and_percent_are_formatted_briefly() {
        let shown = [1.0, 0.5, 1.0 / 3.0, -0.00001, 1e20].map(number);
        assert_eq!(shown, ["1", "0.5", "0.3333", "0", "1e20"]);
        assert_eq!(
            [None, Some(1.0), Some(0.99999), Some(0.00001)].map(percent),
            ["-", "100%", "99.9%", "0.1%"]
        );
    }

    #[test]
    fn duration_and_rate_are_formatted_with_unit() {
        let shown = [0.0, 0.000_02, 0.038, 0.44, 9.99, 12.3, 130.0, 3900.0, 273_600.0]
            .map(|seconds| duration(Duration::from_secs_f64(seconds)));
        assert_eq!(
            shown,
            ["0s", "1ms", "38ms", "0.4s", "9.9s", "12s", "2m 10s", "1h 05m", "3d 04h"]
        );
        assert_eq!([0.0, 0.0123, 0.24, 61.04].map(seconds), ["0.000", "0.012", "0.2", "61.0"]);
        let rate = |count, seconds| rate(count, Duration::from_secs(seconds));
        assert_eq!(rate(0, 10), None);
        assert_eq!(rate(1, 0), None);
        assert_eq!(rate(5, 2).as_deref(), Some("2.5/s"));
        assert_eq!(rate(6, 60).as_deref(), Some("6.0/min"));
        assert_eq!(rate(1, 1800).as_deref(), Some("2.0/h"));
    }

    #[test]
    fn text_is_wrapped_between_words_and_outside_of_backticks() {
        assert_eq!(wrapped("one two three", 13, 2), "one two three");
        assert_eq!(wrapped("one two three", 8, 2), "one two\n  three");
        assert_eq!(wrapped("日本 日本 x", 5, 0), "日本\n日本\nx");
        assert_eq!(wrapped("a\nlonger line", 6, 0), "a\nlonger\nline");
        assert_eq!(wrapped("see /a/very/long/path now", 9, 0), "see\n/a/very/long/path\nnow");
        assert_eq!(wrapped("run `a b c d` to end", 9, 2), "run\n  `a b c d`\n  to end");
        assert_eq!(wrapped("it`s one tick", 8, 0), "it`s one\ntick");
        assert_eq!(wrapped("\x1b[31mred\x1b[0m one", 7, 0), "\x1b[31mred\x1b[0m one");
        assert_eq!(wrapped("", 5, 2), "");
        assert_eq!(wrapped("see a/b/c", 5, 0), "see\na/b/c");
        assert_eq!(wrapped_cell("see a/b/c", 5), "see\na/b/c");
        assert_eq!(wrapped_cell("agent/dataset/task__1", 14), "agent/dataset/\ntask__1");
        assert_eq!(wrapped_cell("to /a/b", 5), "to\n/a/b");
        assert_eq!((widest_part("agent/dataset/task__1"), widest_part("")), (8, 0));
    }

    #[test]
    fn text_and_bar_fit_display_width() {
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!((bar(1, 4, 8), bar(0, 0, 2)), ("██░░░░░░".to_owned(), "██".to_owned()));
    }
}
