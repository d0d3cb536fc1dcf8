"""Corpus sources: where an experiment's text comes from.

A source is a function or class registered under a name with `@source(name)`. The package has four: `sotu`, `folder`,
`file` and `hub`. Define your own source in a separate file and list that file in `plugins`.
"""

from headtohead.data.sources.registry import CorpusSource, SourceRequest, source
from headtohead.data.splits import RawCorpus, RawSplit

__all__ = ["CorpusSource", "RawCorpus", "RawSplit", "SourceRequest", "source"]
