"""Penn Treebank word tokenization, implemented as normalizers for the `tokenizers` library.

Splits contractions (do|n't), possessives ('s), quotes (`` and '') and final periods, but not those of abbreviations.
The rules are those of `word_tokenize` in NLTK 3.8.1; as normalizers, they are part of tokenizer.json, which alone
reproduces them. NLTK inserts spaces in several passes and finally splits at whitespace; each rule below inserts the
same spaces at zero-width matches. For sentence ends inside a row, NLTK uses the punkt model (Kiss and Strunk 2006,
doi:10.1162/coli.2006.32.4.485); here a period ends a sentence unless it follows an abbreviation, an initial or dotted
letters (U.S., p.m.). docs/log.md reports how well the two agree.
"""

from __future__ import annotations

from tokenizers import Regex, decoders, normalizers

ABBREVIATIONS = (
    "Mr Mrs Ms Messrs Dr Prof Gen Sen Rep Reps Lt Col Capt Sgt Maj Adm St Jr Sr Co Corp Inc Ltd Bros vs v "
    "Jan Feb Aug Sept Oct Nov Dec"
).split()

_PERIOD_PATTERN = r"\."
_CLOSING_PUNCTUATION = r"""[\])}>"']"""
# Typographic quotes may follow the last period of a row; within a row, punkt does not accept them after a sentence end.
_SENTENCE_END = rf"""(?:{_CLOSING_PUNCTUATION}*\s|[\])}}>"'»”’ ]*\z)"""


def _build_abbreviation_lookbehind(period: str) -> str:
    """Return a negative look-behind for the abbreviations of Penn Treebank rules, followed by the pattern `period`.

    Writes [Mm]r instead of (?i)Mr, because Oniguruma does not fold the case of every letter in a look-behind.
    """
    # "I" is not an initial: sentences do end in "I.". Apostrophes exclude words like "forget'st.".
    word_patterns = [
        r"[A-HJ-Za-hj-z]",
        *(f"[{word[0].upper()}{word[0].lower()}]{word[1:]}" for word in ABBREVIATIONS),
    ]
    undotted_patterns = [f"{boundary}{word}{period}" for word in word_patterns for boundary in (r"[^\w'’&-]", r"\A")]
    dotted_pattern = r"\b\p{L}\.\p{L}" + period
    return f"(?<!{'|'.join([*undotted_patterns, dotted_pattern])})"


def _build_boundary_pattern(characters: str) -> str:
    """Return a pattern with zero-width matches before and after each of `characters`."""
    return f"(?={characters})|(?<={characters})"


def _build_contraction_pattern(first_half: str, second_half: str) -> str:
    """Return a pattern that matches between the two halves of a contracted word, such as can|not."""
    return rf"(?={second_half}\b)(?<=\b{first_half})"


_FINAL_PERIOD_PATTERN = (
    rf"(?=\.{_SENTENCE_END})(?<=[^.]){_build_abbreviation_lookbehind('')}"
    rf"|(?<=\.)(?={_SENTENCE_END})(?<=[^.]\.){_build_abbreviation_lookbehind(_PERIOD_PATTERN)}"
)
_CONTRACTION_PAIRS = [
    ("can", "not"),
    ("gim", "me"),
    ("gon", "na"),
    ("got", "ta"),
    ("lem", "me"),
    ("d", "'ye"),
    ("more", "'n"),
]
_CONTRACTED_WORDS = [a + b for a, b in _CONTRACTION_PAIRS]
_CONTRACTION_PATTERN = "(?i)" + "|".join(
    [
        *(_build_contraction_pattern(*pair) for pair in _CONTRACTION_PAIRS),
        r"(?=na\s)(?<=\bwan)",
        r"(?=(?:is|was)\b)(?<= 't|\A't)",
        # Separate the word from adjacent punctuation, as in "cannot—".
        rf"(?<=[^\w\s])(?=(?:{'|'.join(_CONTRACTED_WORDS)})\b)",
        r"(?=[^\w\s])(?<=\b" + r"|\b".join(_CONTRACTED_WORDS) + ")",
    ]
)

# The order is NLTK's: starting quotes, punctuation, brackets, dashes, ending quotes, contractions.
TREEBANK_RULES: tuple[tuple[str, str], ...] = (
    (r"[^\S \t]", " "),
    (r"(?=[«“‘„])|(?<=[«“‘„])|(?=`)(?<!`)|(?<=`)(?!`)", " "),
    (r'\A"', "``"),
    (r"``", " `` "),
    (r"""(?:"|'')(?<=[ (\[{<]"|[ (\[{<]'')""", " `` "),
    (r"(?i)(?<=')(?!re|ve|ll|m|t|s|d|n)(?=\w\b)", " "),
    (_FINAL_PERIOD_PATTERN, " "),
    (r"(?=[:,](?:\D|\z))|(?<=[:,])(?=\D)", " "),
    (r"(?=\.{2})(?<!\.)|(?<=\.\.)(?!\.)", " "),
    (_build_boundary_pattern(r"[;@#$%&?!*\[\](){}<>]"), " "),
    (r"(?=' )(?<=[^'])", " "),
    (r"--", " -- "),
    (_build_boundary_pattern("[»”’]"), " "),
    (r"''|\"", " '' "),
    (r"(?=(?:'[sSmMdD]?|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T)(?: |\z))(?<=[^' ])", " "),
    (_CONTRACTION_PATTERN, " "),
)

# Approximate inverse: a contraction that was split is indistinguishable from two words ("can not").
_DETOKENIZATION_RULES = (
    (r"`` ", '"'),
    (r" ''", '"'),
    (r"(?<=[“‘«(\[{$]) ", ""),
    (r" ’ (?=(?:s|t|m|d|re|ve|ll)\b)", "’"),
    (r" (?=[.,;:!?%)\]}”’»])", ""),
    (r"(?i) (?=n't\b|'(?:s|m|d|re|ve|ll)\b)", ""),
    (r"(?<=s) (?='(?: |\z))", ""),
    ("(?i)" + "|".join(rf"(?<=\b{a}) (?={b}\b)" for a, b in [*_CONTRACTION_PAIRS, ("wan", "na"), ("'t", "is")]), ""),
)


ALL_RULES = (*TREEBANK_RULES, (r"\A", " "), *_DETOKENIZATION_RULES)
"""patterns and replacements of the normalizer and the decoder; they take linear time"""


def build_normalizer(*, lowercase: bool) -> normalizers.Normalizer:
    """Return the Penn Treebank rules as one normalizer. Splitting its output at whitespace gives the words."""
    # Lowercase comes first: the library panics if it follows a space inserted before the first character.
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.Replace(Regex(pattern), replacement) for pattern, replacement in TREEBANK_RULES]
    return normalizers.Sequence(steps)


def build_decoder() -> decoders.Decoder:
    """Return a decoder that joins Penn Treebank words with conventional spacing."""
    steps: list[decoders.Decoder] = [
        decoders.Replace(Regex(r"\A"), " "),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    steps += [decoders.Replace(Regex(pattern), replacement) for pattern, replacement in _DETOKENIZATION_RULES]
    return decoders.Sequence(steps)
