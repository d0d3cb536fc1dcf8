"""Corpus sources: where an experiment's text comes from.

A source is a function or class registered under a name with `@source(name)`. The built-in sources are `sotu`, `folder`,
`file`, `files` and `hub`. To add a source, define it in a Python file and list that file in `plugins`.
"""

from headtohead.data.raw_corpus import RawCorpus, RawSplit
from headtohead.data.sources.registry import CorpusSource, SourceRequest, source

__all__ = ["CorpusSource", "RawCorpus", "RawSplit", "SourceRequest", "source"]
