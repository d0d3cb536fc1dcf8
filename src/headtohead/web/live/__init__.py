"""The live state of running experiments, read from their files and streamed to open pages."""
