//! Rights that the API server has granted to this process.
//!
//! A server that starts refuses everything until it has loaded its rules. So a refusal says that a
//! right is missing only if this process has never used the right.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use kube::{Api, Error, Resource};

use super::failure::{lacks_right, shows_right};

/// A verb for the objects of a resource in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Right(String);

impl Right {
    /// The right to `verb` the objects of `api`.
    pub(super) fn to<K: Resource>(verb: &'static str, api: &Api<K>) -> Self {
        Self(format!("{verb} {}", api.resource_url()))
    }
}

/// Whether an answer refuses a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It does not.
    None,
    /// It does, and no answer has shown the right yet.
    First,
    /// It does, and an earlier answer has shown the right.
    Again,
}

/// The rights that answers have shown.
#[derive(Debug, Default)]
pub(super) struct GrantedRights(Mutex<BTreeSet<Right>>);

impl GrantedRights {
    /// Whether `answer` refuses a right. Remembers a right that it shows.
    pub(super) fn judge<T>(&self, right: &Right, answer: &Result<T, Error>) -> Refusal {
        let mut granted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Err(error) if lacks_right(error) && granted.contains(right) => Refusal::Again,
            Err(error) if lacks_right(error) => Refusal::First,
            Err(error) if !shows_right(error) => Refusal::None,
            _ => {
                if !granted.contains(right) {
                    granted.insert(right.clone());
                }
                Refusal::None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answer(code: u16, message: &str) -> Result<(), Error> {
        Err(Error::Api(Status::failure(message, "").with_code(code).boxed()))
    }

    #[test]
    fn right_is_refused_again_after_an_answer_showed_it() {
        let (rights, right) = (GrantedRights::default(), Right("create pods".to_owned()));
        let other = Right("delete pods".to_owned());
        let forbidden = || answer(403, "pods is forbidden: User \"w\" cannot create resource");
        assert_eq!(rights.judge(&right, &forbidden()), Refusal::First);
        // These are no answers about rights.
        for code in [429, 500, 503] {
            assert_eq!(rights.judge(&right, &answer(code, "not now")), Refusal::None);
        }
        assert_eq!(rights.judge(&right, &forbidden()), Refusal::First);
        assert_eq!(rights.judge(&right, &answer(404, "pods \"x\" not found")), Refusal::None);
        assert_eq!(rights.judge(&right, &forbidden()), Refusal::Again);
        assert_eq!(rights.judge(&right, &answer(401, "Unauthorized")), Refusal::Again);
        assert_eq!(rights.judge(&other, &forbidden()), Refusal::First);
        assert_eq!(rights.judge(&right, &answer(403, "exceeded quota: q")), Refusal::None);
    }
}
