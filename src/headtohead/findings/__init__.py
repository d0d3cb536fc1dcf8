"""Compute findings.json from an experiment's run folders, without torch. Each module covers one family of sections.

compute          builds all of findings.json, and checks that the files it is computed from are intact
evaluation_sets  selects the splits and rows that verdicts are based on, and stacks their scores
verdicts         verdicts on the primary and secondary evaluation sets, and comparisons among variants
scores           per-seed scores, learning curves, confusion matrices, results plotted against a setting
pairing          evidence that a variant and the baseline were trained under the same conditions, and their costs
withheld         reasons for withholding verdicts
plausibility     warnings above the verdicts: variants that changed nothing, implausible scores
probes           samples, probe sentences, length generalization, audits and failures
"""
