"""Run one trial: its dataset, model, training, evaluation and output files."""
