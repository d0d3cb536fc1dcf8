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

_PERIOD = r"\."
_CLOSERS = r"""[\])}>"']"""
# After the last period of a row typographic quotes close too; inside a row punkt does not see them as an end.
_END = rf"""(?:{_CLOSERS}*\s|[\])}}>"'»”’ ]*\z)"""


def _not_after_abbreviation(period: str) -> str:
    """Oniguruma does not fold the case of every letter in a look-behind, hence [Mm]r and not (?i)Mr."""
    # A sentence does end in "I.", and in "forget'st." too.
    words = [
        r"[A-HJ-Za-hj-z]",
        *(f"[{name[0].upper()}{name[0].lower()}]{name[1:]}" for name in ABBREVIATIONS),
    ]
    alone = [f"{before}{word}{period}" for word in words for before in (r"[^\w'’&-]", r"\A")]
    dotted = r"\b\p{L}\.\p{L}" + period
    return f"(?<!{'|'.join([*alone, dotted])})"


def _around(characters: str) -> str:
    return f"(?={characters})|(?<={characters})"


def _between(first: str, second: str) -> str:
    return rf"(?={second}\b)(?<=\b{first})"


_FINAL_PERIOD = (
    rf"(?=\.{_END})(?<=[^.]){_not_after_abbreviation('')}"
    rf"|(?<=\.)(?={_END})(?<=[^.]\.){_not_after_abbreviation(_PERIOD)}"
)
_CONTRACTED = [
    ("can", "not"),
    ("gim", "me"),
    ("gon", "na"),
    ("got", "ta"),
    ("lem", "me"),
    ("d", "'ye"),
    ("more", "'n"),
]
_WHOLE = [a + b for a, b in _CONTRACTED]
_CONTRACTIONS = "(?i)" + "|".join(
    [
        *(_between(*pair) for pair in _CONTRACTED),
        r"(?=na\s)(?<=\bwan)",
        r"(?=(?:is|was)\b)(?<= 't|\A't)",
        # The pair is set apart from what it hangs on, as in "cannot—".
        rf"(?<=[^\w\s])(?=(?:{'|'.join(_WHOLE)})\b)",
        r"(?=[^\w\s])(?<=\b" + r"|\b".join(_WHOLE) + ")",
    ]
)

# The order is NLTK's: starting quotes, punctuation, brackets, dashes, ending quotes, contractions.
TREEBANK: tuple[tuple[str, str], ...] = (
    (r"[^\S \t]", " "),
    (r"(?=[«“‘„])|(?<=[«“‘„])|(?=`)(?<!`)|(?<=`)(?!`)", " "),
    (r'\A"', "``"),
    (r"``", " `` "),
    (r"""(?:"|'')(?<=[ (\[{<]"|[ (\[{<]'')""", " `` "),
    (r"(?i)(?<=')(?!re|ve|ll|m|t|s|d|n)(?=\w\b)", " "),
    (_FINAL_PERIOD, " "),
    (r"(?=[:,](?:\D|\z))|(?<=[:,])(?=\D)", " "),
    (r"(?=\.{2})(?<!\.)|(?<=\.\.)(?!\.)", " "),
    (_around(r"[;@#$%&?!*\[\](){}<>]"), " "),
    (r"(?=' )(?<=[^'])", " "),
    (r"--", " -- "),
    (_around("[»”’]"), " "),
    (r"''|\"", " '' "),
    (r"(?=(?:'[sSmMdD]?|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T)(?: |\z))(?<=[^' ])", " "),
    (_CONTRACTIONS, " "),
)

# Back to readable text; what was cut cannot be told from what was written apart ("can not"), so this is no inverse.
_JOINED = (
    (r"`` ", '"'),
    (r" ''", '"'),
    (r"(?<=[“‘«(\[{$]) ", ""),
    (r" ’ (?=(?:s|t|m|d|re|ve|ll)\b)", "’"),
    (r" (?=[.,;:!?%)\]}”’»])", ""),
    (r"(?i) (?=n't\b|'(?:s|m|d|re|ve|ll)\b)", ""),
    (r"(?<=s) (?='(?: |\z))", ""),
    ("(?i)" + "|".join(rf"(?<=\b{a}) (?={b}\b)" for a, b in [*_CONTRACTED, ("wan", "na"), ("'t", "is")]), ""),
)


def normalizer(*, lowercase: bool) -> normalizers.Normalizer:
    """The rules as one normalizer; cutting at white space after it gives the words."""
    # Lowercase comes first: the library panics where it follows a space that was put before the first character.
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.Replace(Regex(rule), by) for rule, by in TREEBANK]
    return normalizers.Sequence(steps)


def decoder() -> decoders.Decoder:
    """Words joined as people write them."""
    steps: list[decoders.Decoder] = [
        decoders.Replace(Regex(r"\A"), " "),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    steps += [decoders.Replace(Regex(rule), by) for rule, by in _JOINED]
    return decoders.Sequence(steps)
