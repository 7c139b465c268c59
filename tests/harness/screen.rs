//! The screen of a terminal: what its user sees after output that moves the cursor.

/// A screen of one width, which never scrolls.
#[derive(Debug)]
pub struct Screen {
    columns: usize,
    lines: Vec<Vec<char>>,
    row: usize,
    /// Column of the next character; `columns` after a character in the last one.
    column: usize,
}

impl Screen {
    /// The screen after this output.
    pub fn after(output: &[u8], columns: usize) -> Self {
        let mut screen = Self { columns, lines: vec![Vec::new()], row: 0, column: 0 };
        let text = String::from_utf8_lossy(output);
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            match character {
                '\u{1b}' => screen.sequence(&mut characters),
                '\r' => screen.column = 0,
                '\n' => screen.next_row(),
                shown if !shown.is_control() => screen.put(shown),
                _ => {}
            }
        }
        screen
    }

    /// Its lines, without blanks at their ends.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.lines.iter().map(|line| line.iter().collect::<String>());
        lines.map(|line| line.trim_end().to_owned()).collect()
    }

    fn next_row(&mut self) {
        self.row += 1;
        if self.row == self.lines.len() {
            self.lines.push(Vec::new());
        }
    }

    fn put(&mut self, character: char) {
        if self.column == self.columns {
            self.next_row();
            self.column = 0;
        }
        let line = &mut self.lines[self.row];
        let length = line.len().max(self.column + 1);
        line.resize(length, ' ');
        line[self.column] = character;
        self.column += 1;
    }

    /// Acts on a control sequence, `ESC [ NUMBER LETTER`. Colours have no effect.
    fn sequence(&mut self, characters: &mut impl Iterator<Item = char>) {
        if characters.next() != Some('[') {
            return;
        }
        let mut number = String::new();
        let end = characters.find(|character| {
            number.push(*character);
            character.is_ascii_alphabetic()
        });
        let count = number.trim_end_matches(char::is_alphabetic).parse().unwrap_or(1);
        match end {
            Some('A') => self.row = self.row.saturating_sub(count),
            Some('B') => (0..count).for_each(|_| self.next_row()),
            Some('K') => self.lines[self.row].clear(),
            _ => {}
        }
    }
}
