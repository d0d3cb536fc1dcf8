"""The provenance of runs: the settings, user code, data, weights and environment that they were trained with."""
