"""Run one trial: dataset, model, training, evaluation and the files of its run folder."""
