//! Quantities of resources in the double of the Kubernetes API.

use rollout_tests::kube::quantity::{format_milli, parse_milli};

#[test]
fn quantity_is_parsed_and_printed() {
    assert_eq!(parse_milli("500m"), Some(500));
    assert_eq!(parse_milli("2"), Some(2000));
    assert_eq!(parse_milli("1.5Gi"), Some(1_610_612_736_000));
    assert_eq!(parse_milli("two"), None);
    assert_eq!(format_milli(1500), "1500m");
    assert_eq!(format_milli(2 * 1_073_741_824_000), "2Gi");
    assert_eq!(format_milli(3000), "3");
}
