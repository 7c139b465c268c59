//! The time zone of this host: for names of runs, and for times in tables. Documents have UTC.

use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, Zoned};

/// The present time.
pub(super) fn now() -> Zoned {
    Timestamp::now().to_zoned(zone())
}

/// A time to the second, as tables have it.
pub(crate) fn shown(at: Timestamp) -> String {
    in_zone(at, &zone())
}

fn in_zone(at: Timestamp, zone: &TimeZone) -> String {
    let offset = zone.to_offset(at);
    if offset == Offset::UTC {
        return format!("{at:.0}");
    }
    format!("{:.0}", at.display_with_offset(offset))
}

/// Why times are in UTC although `TZ` says otherwise, if they are.
pub(crate) fn unknown_zone() -> Option<String> {
    // A host that has no zone set is in UTC.
    let name = std::env::var_os("TZ")?;
    let error = TimeZone::try_system().err()?;
    let name = name.to_string_lossy();
    Some(format!("cannot find the time zone of TZ={name}, times are in UTC: {error}"))
}

fn zone() -> TimeZone {
    TimeZone::try_system().unwrap_or(TimeZone::UTC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_zone_has_its_offset_and_utc_has_z() {
        let at = Timestamp::UNIX_EPOCH;
        let tokyo = TimeZone::fixed(jiff::tz::offset(9));
        assert_eq!(in_zone(at, &tokyo), "1970-01-01T09:00:00+09:00");
        assert_eq!(in_zone(at, &TimeZone::UTC), "1970-01-01T00:00:00Z");
    }
}
