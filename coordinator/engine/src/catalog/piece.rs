//! Pieces of a segment: which ones there are, and which ones to read.

/// The bytes of a segment from `start` to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Piece {
    /// The last component of its path. Positions have a fixed width, so paths are in order.
    pub(super) fn name(self) -> String {
        format!("{:016}-{:016}", self.start, self.end)
    }

    /// The piece with this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (start, end) = name.split_once('-')?;
        let piece = Self { start: start.parse().ok()?, end: end.parse().ok()? };
        (piece.start < piece.end && piece.name() == name).then_some(piece)
    }
}

/// The pieces that hold the bytes from `position` on without a gap, as few as possible, in order.
/// The first one may begin before it.
pub(super) fn chain_from(position: u64, pieces: &[Piece]) -> Vec<Piece> {
    let mut sorted = pieces.to_vec();
    sorted.sort_unstable();
    let (mut chain, mut reached, mut next) = (Vec::new(), position, 0);
    loop {
        let mut longest: Option<Piece> = None;
        while let Some(piece) = sorted.get(next).filter(|piece| piece.start <= reached) {
            if piece.end > longest.map_or(reached, |longest| longest.end) {
                longest = Some(*piece);
            }
            next += 1;
        }
        let Some(piece) = longest else { return chain };
        reached = piece.end;
        chain.push(piece);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces(ranges: &[(u64, u64)]) -> Vec<Piece> {
        ranges.iter().map(|&(start, end)| Piece { start, end }).collect()
    }

    #[test]
    fn piece_name_is_read_back_and_others_are_not() {
        let piece = Piece { start: 7, end: 1 << 40 };
        assert_eq!(Piece::parse(&piece.name()), Some(piece));
        for bad in ["opening", "7-9", "0000000000000007-0000000000000007", "-", ""] {
            assert_eq!(Piece::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn chain_prefers_joined_pieces_and_ends_at_a_gap() {
        let all = pieces(&[(0, 10), (10, 20), (0, 20), (20, 30), (40, 50)]);
        assert_eq!(chain_from(0, &all), pieces(&[(0, 20), (20, 30)]));
        assert_eq!(chain_from(15, &all), pieces(&[(0, 20), (20, 30)]));
        assert_eq!(chain_from(30, &all), []);
        assert_eq!(chain_from(45, &all), pieces(&[(40, 50)]));
    }

    proptest! {
        /// A history of batches of which some runs were joined, and some small pieces removed.
        #[test]
        fn chain_of_history_reaches_its_end_from_any_position(
            lengths in proptest::collection::vec(1u64..50, 1..30),
            joins in proptest::collection::vec((0usize..30, 1usize..10, any::<bool>()), 0..6),
            from in 0usize..30,
        ) {
            let mut ends = vec![0];
            for length in &lengths {
                ends.push(ends[ends.len() - 1] + length);
            }
            let small = |at: usize| Piece { start: ends[at], end: ends[at + 1] };
            let mut all: Vec<Piece> = (0..lengths.len()).map(small).collect();
            for (at, count, removed) in joins {
                let at = at % lengths.len();
                let to = (at + count).min(lengths.len());
                let joined = Piece { start: ends[at], end: ends[to] };
                if removed {
                    all.retain(|piece| piece.start < joined.start || piece.end > joined.end);
                }
                all.push(joined);
            }
            let from = ends[from % lengths.len()];
            let chain = chain_from(from, &all);
            let mut reached = from;
            for piece in &chain {
                prop_assert!(piece.start <= reached && piece.end > reached);
                reached = piece.end;
            }
            prop_assert_eq!(reached, *ends.last().expect("one at least"));
        }
    }
}
