//! The forms that builders read in different ways, and those to write instead.

/// A form of a Dockerfile that builders read in different ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnclearForm {
    /// The directive `escape` with another character.
    EscapeDirective,
    /// A directive that is not ASCII.
    Directive,
    /// A control character.
    ControlCharacter,
    /// Two escape characters at the end of a line.
    Continuation,
    /// A name of an instruction or a flag that is not ASCII.
    Head,
    /// A flag of another name or other characters.
    Flag,
    /// A mount with variables.
    Mount,
    /// A flag that gives a command more than its container has.
    Isolation,
    /// A source of files that is no name of an image.
    CopySource,
    /// A base image that is no plain word.
    BaseImage,
    /// A name of a stage that is no plain word.
    StageName,
    /// An image whose name has other characters.
    ImageName,
    /// An image without a name.
    NoImage,
    /// A base image with the name of a stage that some builders do not know by it.
    UnknownStage,
    /// A variable whose value is not known before the build.
    BuilderVariable,
    /// An `ARG` before the first `FROM`.
    Argument,
    /// The value of an `ARG` that chooses an image.
    ArgumentValue,
    /// The same with a variable that the same `ARG` sets.
    SameArgument,
    /// A source or the target of `ADD` or `COPY`.
    Word,
    /// A list that is no strict JSON.
    List,
    /// `<<`.
    HereDocument,
    /// A here-document for a frontend that has none.
    OldFrontend,
    /// A trigger of a trigger.
    Trigger,
}

const FLAGS: &str = "flags of the instruction, as `--NAME=VALUE` of ASCII letters, digits and \
                     `._/@:+~*?=,%!{}[]-`, with variables as `$NAME` or `${NAME}`; `--from=` and `--mount=` \
                     without quotes; in a here-document, whose lines are instructions for some builders, no \
                     line that begins as one with other flags";

const ISOLATION: &str = "`RUN` without `--device` and `--security`, and with `--network=none` or without \
                         `--network`";

const NEW_FRONTEND: &str = "`# syntax=docker/dockerfile:1`, or no here-document";

const HEREDOCS: &str = "`<<NAME` or `<<-NAME` in `RUN`, `COPY` or `ADD`, with a plain name, in quotes or not, \
                        `<<<`, `<<` in plain quotes, or a script in a file";

const WORDS: &str = "words of letters, digits and `._/@:+~*?=,%!#&()[]{}^-`, with variables as `$NAME` or \
                     `${NAME}`, in quotes or not, or a JSON list of such words";

const PLAIN_NAME: &str = "a plain name, with variables as `$NAME` or `${NAME}` that plain `ARG NAME=VALUE` set \
                          before the first `FROM`";

impl UnclearForm {
    /// Its description, and that of the form to write instead.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::EscapeDirective => {
                ("a directive `escape`", "`\\` as the escape character, without a directive")
            }
            Self::Directive => {
                ("a directive that is not ASCII", "`# syntax=` or `# check=` in ASCII")
            }
            Self::ControlCharacter => {
                ("a control character", "no control characters but tabs and line ends")
            }
            Self::Continuation => (
                "two escape characters at the end of a line",
                "one, if the next line belongs to the instruction, else none",
            ),
            Self::Head => (
                "an instruction or flag with other characters than ASCII",
                "ASCII, with spaces between instruction, flags and arguments",
            ),
            Self::Flag => (
                "an unknown or second flag, or one with escapes, other characters or without a value",
                FLAGS,
            ),
            Self::Mount => (
                "a mount with a variable",
                "`--mount=` without variables: some builders replace them before they look for `from=`",
            ),
            Self::Isolation => {
                ("a flag that gives a command more than its container has", ISOLATION)
            }
            Self::CopySource => (
                "a source of files that is no plain name",
                "the name of a stage or an image, without variables: `FROM IMAGE AS NAME`, then `--from=NAME`",
            ),
            Self::BaseImage => ("a base image that is no plain word", PLAIN_NAME),
            Self::StageName => (
                "a name of a stage that is no plain word",
                "`FROM IMAGE AS NAME` with a letter, then letters, digits and `._-`",
            ),
            Self::ImageName => {
                ("an image whose name, with its variables, is not plain", PLAIN_NAME)
            }
            Self::NoImage => (
                "an image without a name",
                "`ARG NAME=VALUE` before the first `FROM`, or a build argument",
            ),
            Self::UnknownStage => (
                "a base image with the name of a stage in another case, or of several stages",
                "the name of one earlier stage, as its `AS` has it",
            ),
            Self::BuilderVariable => {
                ("an image that depends on a variable of the builder", "an `ARG` of another name")
            }
            Self::Argument => (
                "an `ARG` that is no list of plain `NAME=VALUE`",
                "values without escapes, in whole quotes or without blanks",
            ),
            Self::ArgumentValue => ("a value that chooses an image and is not plain", PLAIN_NAME),
            Self::SameArgument => (
                "a value that chooses an image and has a variable of the same `ARG`",
                "an `ARG` of its own, after the one of the variable",
            ),
            Self::Word => ("a source or target that is no plain word", WORDS),
            Self::List => ("a list that is no plain JSON", "a JSON list of texts without escapes"),
            Self::HereDocument => ("`<<` in an unusual form or place", HEREDOCS),
            Self::OldFrontend => ("a frontend without here-documents", NEW_FRONTEND),
            Self::Trigger => ("a trigger of a trigger", "one `ONBUILD`"),
        }
    }

    /// Its description.
    pub const fn found(self) -> &'static str {
        self.texts().0
    }

    /// The form to write instead.
    pub const fn expected(self) -> &'static str {
        self.texts().1
    }
}

/// Longest part of a text in a message, in characters.
const SHOWN_CHARS: usize = 60;

/// A part of a Dockerfile in such a form.
pub(super) struct UnclearPart {
    pub(super) form: UnclearForm,
    /// The text, shortened, with blanks that are not to be seen as codes.
    pub(super) written: String,
}

impl UnclearPart {
    pub(super) fn new(form: UnclearForm, written: &str) -> Self {
        let mut shown = String::new();
        for (count, c) in written.chars().enumerate() {
            if count == SHOWN_CHARS {
                shown.push('…');
                break;
            }
            match c.is_control() || (c.is_whitespace() && c != ' ') {
                true => shown.extend(c.escape_default()),
                false => shown.push(c),
            }
        }
        Self { form, written: shown }
    }
}
