"""Exchange of models with other libraries: import of transformers checkpoints, and export of runs."""
