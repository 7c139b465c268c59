//! Tokens of model calls, and the calls merged into trajectories.
//!
//! Long lists are sections of the binary file `gateway/tokens.bin` instead of JSON. A section is
//! [`TokenSection`]: an offset in bytes, which is a multiple of four, and a number of items. Token
//! ids are 32-bit integers, log probabilities are 32-bit floating point numbers (NaN where there is
//! none), both little-endian; a mask has a byte for each token.

use serde::{Deserialize, Serialize};

use super::model_call::CallPolicy;

/// A list in the file of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSection {
    /// Where it begins, bytes.
    pub offset: u64,
    /// Number of its items.
    pub count: u64,
}

/// A section that the file of tokens does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the file of tokens has no {} items at byte {}; it is cut or of another trial", .0.count, .0.offset)]
pub struct MissingTokens(pub TokenSection);

impl TokenSection {
    /// The bytes of its items, of so many bytes each.
    fn bytes(self, file: &[u8], size: u64) -> Result<&[u8], MissingTokens> {
        let begin = usize::try_from(self.offset).ok();
        let length = self.count.checked_mul(size).and_then(|length| usize::try_from(length).ok());
        let found = begin.zip(length).and_then(|(begin, length)| file.get(begin..)?.get(..length));
        found.ok_or(MissingTokens(self))
    }

    fn ids(self, file: &[u8]) -> Result<Vec<u32>, MissingTokens> {
        let (items, _) = self.bytes(file, 4)?.as_chunks::<4>();
        Ok(items.iter().map(|item| u32::from_le_bytes(*item)).collect())
    }

    fn logprobs(self, file: &[u8]) -> Result<Vec<Option<f64>>, MissingTokens> {
        let (items, _) = self.bytes(file, 4)?.as_chunks::<4>();
        let items = items.iter().map(|item| f32::from_le_bytes(*item));
        Ok(items.map(|item| (!item.is_nan()).then(|| f64::from(item))).collect())
    }
}

/// New sections for the end of a file of tokens.
#[derive(Debug)]
pub struct TokenSections {
    /// Size of the file before.
    base: u64,
    bytes: Vec<u8>,
}

impl TokenSections {
    /// No sections, at the end of a file of this size, which is a multiple of four.
    pub const fn new(base: u64) -> Self {
        Self { base, bytes: Vec::new() }
    }

    /// Their bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn add(&mut self, count: usize, items: impl Iterator<Item = u8>) -> TokenSection {
        let section =
            TokenSection { offset: self.base + self.bytes.len() as u64, count: count as u64 };
        self.bytes.extend(items);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        section
    }

    fn take_ids(&mut self, ids: &mut Vec<u32>) -> TokenSection {
        let ids = std::mem::take(ids);
        self.add(ids.len(), ids.iter().flat_map(|id| id.to_le_bytes()))
    }

    fn take_logprobs(&mut self, logprobs: &mut Vec<Option<f64>>) -> TokenSection {
        let logprobs = std::mem::take(logprobs);
        let items = logprobs.iter().map(|logprob| logprob.map_or(f32::NAN, |value| value as f32));
        self.add(logprobs.len(), items.flat_map(f32::to_le_bytes))
    }
}

/// Tokens of a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallTokens {
    /// Ids of the prompt, if the server gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_ids: Option<Vec<u32>>,
    /// The same in the file of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_ids_at: Option<TokenSection>,
    /// Choices, in the order of their indexes.
    pub choices: Vec<ChoiceTokens>,
}

impl CallTokens {
    /// Number of its token ids and log probabilities.
    pub fn count(&self) -> usize {
        let choice = |choice: &ChoiceTokens| {
            let ids = choice.ids.as_ref().map_or(0, Vec::len);
            ids + choice.logprobs.as_ref().map_or(0, Vec::len)
        };
        let prompt = self.prompt_ids.as_ref().map_or(0, Vec::len);
        prompt + self.choices.iter().map(choice).sum::<usize>()
    }

    /// Moves its lists to sections.
    pub fn pack(&mut self, into: &mut TokenSections) {
        self.prompt_ids_at = self.prompt_ids.take().map(|mut ids| into.take_ids(&mut ids));
        for choice in &mut self.choices {
            choice.ids_at = choice.ids.take().map(|mut ids| into.take_ids(&mut ids));
            let logprobs = choice.logprobs.take();
            choice.logprobs_at = logprobs.map(|mut logprobs| into.take_logprobs(&mut logprobs));
        }
    }

    /// Moves the lists from the sections of a file back.
    ///
    /// # Errors
    /// [`MissingTokens`].
    pub fn unpack(&mut self, file: &[u8]) -> Result<(), MissingTokens> {
        if let Some(section) = self.prompt_ids_at.take() {
            self.prompt_ids = Some(section.ids(file)?);
        }
        for choice in &mut self.choices {
            if let Some(section) = choice.ids_at.take() {
                choice.ids = Some(section.ids(file)?);
            }
            if let Some(section) = choice.logprobs_at.take() {
                choice.logprobs = Some(section.logprobs(file)?);
            }
        }
        Ok(())
    }
}

/// Tokens of one choice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChoiceTokens {
    /// Index of the choice.
    pub index: u64,
    /// Ids of the sampled tokens, if the server gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<u32>>,
    /// The same in the file of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids_at: Option<TokenSection>,
    /// Log probabilities of the sampled tokens, if the server gave them; `null` where it gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<Option<f64>>>,
    /// The same in the file of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs_at: Option<TokenSection>,
}

/// A line of `gateway/trajectories.jsonl`: calls whose prompts continue each other exactly. A call
/// that two others continue is in both of their lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrajectoryRecord {
    /// Its calls, each a continuation of the one before.
    pub calls: Vec<u64>,
    /// Items that were compared: token ids, or the messages of requests and replies.
    pub by: TrajectoryBasis,
    /// Token ids of the last prompt and its reply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<u32>,
    /// The same in the file of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids_at: Option<TokenSection>,
    /// For each token, whether a model sampled it in one of these calls: 1 or 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mask: Vec<u8>,
    /// The same in the file of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_at: Option<TokenSection>,
    /// For each token, its log probability; `null` for tokens that were not sampled or have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Option<f64>>,
    /// The same in the file of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs_at: Option<TokenSection>,
    /// Policy versions of each of `calls`, in their order; empty if the run has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<CallPolicy>,
}

impl TrajectoryRecord {
    /// Moves its lists to sections.
    pub fn pack(&mut self, into: &mut TokenSections) {
        self.ids_at = Some(into.take_ids(&mut self.ids));
        let mask = std::mem::take(&mut self.mask);
        self.mask_at = Some(into.add(mask.len(), mask.into_iter()));
        self.logprobs_at = Some(into.take_logprobs(&mut self.logprobs));
    }

    /// Moves the lists from the sections of a file back.
    ///
    /// # Errors
    /// [`MissingTokens`].
    pub fn unpack(&mut self, file: &[u8]) -> Result<(), MissingTokens> {
        if let Some(section) = self.ids_at.take() {
            self.ids = section.ids(file)?;
        }
        if let Some(section) = self.mask_at.take() {
            self.mask = section.bytes(file, 1)?.to_vec();
        }
        if let Some(section) = self.logprobs_at.take() {
            self.logprobs = section.logprobs(file)?;
        }
        Ok(())
    }
}

/// Items by which calls are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrajectoryBasis {
    /// Token ids.
    Tokens,
    /// Messages.
    Messages,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_lists_are_read_back_and_begin_at_multiples_of_four() {
        let choice = ChoiceTokens {
            ids: Some(vec![7, 151_643]),
            logprobs: Some(vec![Some(-0.5), None]),
            ..ChoiceTokens::default()
        };
        let call = CallTokens {
            prompt_ids: Some(vec![1, 2, 3]),
            choices: vec![choice, ChoiceTokens { index: 1, ..ChoiceTokens::default() }],
            ..CallTokens::default()
        };
        let trajectory = TrajectoryRecord {
            calls: vec![1],
            by: TrajectoryBasis::Tokens,
            ids: vec![1, 2, 3, 7, 151_643],
            ids_at: None,
            mask: vec![0, 0, 0, 1, 1],
            mask_at: None,
            logprobs: vec![None, None, None, Some(-0.5), None],
            logprobs_at: None,
            policies: Vec::new(),
        };
        let mut sections = TokenSections::new(8);
        let (mut packed_call, mut packed) = (call.clone(), trajectory.clone());
        packed_call.pack(&mut sections);
        packed.pack(&mut sections);
        assert_eq!(packed_call.count(), 0);
        assert_eq!(packed_call.prompt_ids_at, Some(TokenSection { offset: 8, count: 3 }));
        let file = [vec![0; 8], sections.into_bytes()].concat();
        assert_eq!(file[8..16], [1, 0, 0, 0, 2, 0, 0, 0]);
        let mask = packed.mask_at.expect("a section");
        assert_eq!((mask.offset % 4, mask.count, file.len() % 4), (0, 5, 0));
        let json = serde_json::to_string(&(packed_call, packed)).expect("JSON");
        let (mut read_call, mut read): (CallTokens, TrajectoryRecord) =
            serde_json::from_str(&json).expect("the form");
        read_call.unpack(&file).expect("whole");
        read.unpack(&file).expect("whole");
        assert_eq!((read_call, read), (call, trajectory));
    }

    #[test]
    fn section_outside_of_the_file_is_an_error() {
        for (offset, count) in [(0, 3), (8, 1), (4, u64::MAX), (u64::MAX, 0)] {
            let section = TokenSection { offset, count };
            let mut call = CallTokens { prompt_ids_at: Some(section), ..CallTokens::default() };
            assert_eq!(call.unpack(&[0; 8]), Err(MissingTokens(section)));
        }
    }
}
