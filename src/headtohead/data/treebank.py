"""English words as the Penn Treebank cuts them: do|n't, 's, `` and '', final periods but not those of abbreviations.

The rules are those of `word_tokenize` in NLTK 3.8.1, which the course used, written as normalizers of the `tokenizers`
library, so that tokenizer.json alone reproduces them. NLTK puts spaces around what it finds, step after step, and
cuts at white space in the end; each step here inserts the same spaces at places of no width. Where a sentence ends
inside a row NLTK asks the punkt model (Kiss and Strunk 2006, doi:10.1162/coli.2006.32.4.485); here a period ends one
unless it follows an abbreviation, an initial or letters with periods between (U.S., p.m.). See docs/log.md for how
near that comes.
"""

from __future__ import annotations

from tokenizers import Regex, decoders, normalizers

ABBREVIATIONS = (
    "Mr Mrs Ms Messrs Dr Prof Gen Sen Rep Reps Lt Col Capt Sgt Maj Adm St Jr Sr Co Corp Inc Ltd Bros vs v "
    "Jan Feb Aug Sept Oct Nov Dec"
).split()

_PERIOD_PATTERN = r"\."
_CLOSING_PUNCTUATION = r"""[\])}>"']"""
# After the last period of a row typographic quotes close too; inside a row punkt does not see them as an end.
_SENTENCE_END = rf"""(?:{_CLOSING_PUNCTUATION}*\s|[\])}}>"'»”’ ]*\z)"""


def _build_abbreviation_lookbehind(period: str) -> str:
    """Oniguruma does not fold the case of every letter in a look-behind, hence [Mm]r and not (?i)Mr."""
    # A sentence does end in "I.", and in "forget'st." too.
    words = [
        r"[A-HJ-Za-hj-z]",
        *(f"[{name[0].upper()}{name[0].lower()}]{name[1:]}" for name in ABBREVIATIONS),
    ]
    alone = [f"{before}{word}{period}" for word in words for before in (r"[^\w'’&-]", r"\A")]
    dotted = r"\b\p{L}\.\p{L}" + period
    return f"(?<!{'|'.join([*alone, dotted])})"


def _build_boundary_pattern(characters: str) -> str:
    return f"(?={characters})|(?<={characters})"


def _build_junction_pattern(first: str, second: str) -> str:
    return rf"(?={second}\b)(?<=\b{first})"


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
        *(_build_junction_pattern(*pair) for pair in _CONTRACTION_PAIRS),
        r"(?=na\s)(?<=\bwan)",
        r"(?=(?:is|was)\b)(?<= 't|\A't)",
        # The pair is set apart from what it hangs on, as in "cannot—".
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

# Back to readable text; what was cut cannot be told from what was written apart ("can not"), so this is no inverse.
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


def build_normalizer(*, lowercase: bool) -> normalizers.Normalizer:
    """The rules as one normalizer; cutting at white space after it gives the words."""
    # Lowercase comes first: the library panics where it follows a space that was put before the first character.
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.Replace(Regex(rule), by) for rule, by in TREEBANK_RULES]
    return normalizers.Sequence(steps)


def build_decoder() -> decoders.Decoder:
    """Words joined as people write them."""
    steps: list[decoders.Decoder] = [
        decoders.Replace(Regex(r"\A"), " "),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    steps += [decoders.Replace(Regex(rule), by) for rule, by in _DETOKENIZATION_RULES]
    return decoders.Sequence(steps)
