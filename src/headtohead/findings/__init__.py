"""Compute findings.json from an experiment's run folders, without torch. `headtohead.report` presents the results.

compute                all of findings.json, after checking that the files it is computed from are intact
evaluation_sets        the splits and rows that verdicts are based on
example_scores         scores of test examples or documents, stacked over seeds
comparability          whether two variants predicted the same text, and in which unit they are compared
verdicts               verdicts on the primary and secondary evaluation sets, and comparisons among variants
withheld               reasons for withholding verdicts
pairing                evidence that a variant and the baseline were trained under the same conditions, and their costs
result_warnings        warnings above the verdicts: variants that changed nothing, implausible scores
failures               lost runs and trials without a result
audits                 audits of the models, merged over seeds
seed_scores            scores of every seed, learning curves, confusion matrices, final losses
length_generalization  scores and costs by context length
probes                 samples and probe sentences
sweep                  verdicts of all cells of a sweep, and a summary of each variant
contrasts, trends      weighted sums of several comparisons, and trends along an axis of a sweep
"""
