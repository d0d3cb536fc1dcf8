"""Results of an experiment computed from its run folders, without torch: one builder for each section of findings.json.

compute          the whole of findings.json, and checking that the files it is computed from are intact
evaluation_sets  which split and rows the verdict is based on, and the scores there
verdicts         verdicts on the primary evaluation set, on others, and among variants
scores           scores by seed, learning curves, confusion matrices, results against a setting
pairing          evidence that variant and baseline were trained alike, and their costs
probes           samples, probe sentences, other input lengths, audits and failures
"""
