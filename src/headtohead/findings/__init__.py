"""Compute findings.json from the run folders of an experiment, without torch. One module per family of sections.

compute          builds all of findings.json, and checks that the files it is computed from are intact
evaluation_sets  selects the splits and rows that verdicts are based on, and stacks their scores
verdicts         verdicts on the primary and secondary evaluation sets, and comparisons among variants
scores           scores by seed, learning curves, confusion matrices, results against a setting
pairing          evidence that variant and baseline were trained alike, and their costs
withheld         reasons for withholding verdicts
plausibility     warnings above the verdicts: variants that changed nothing, implausible scores
probes           samples, probe sentences, other input lengths, audits and failures
"""
