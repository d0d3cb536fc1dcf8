"""Draw the charts of a report from findings. Sections place them, and `headtohead.presentation` renders them.

forest_plot         effects of variants with their intervals
learning_curves     scores during training, their differences from the baseline, and a classifier's fit
paired_scores       scores by seed, from the baseline to the variant
scores_by_setting   scores against a numeric setting
"""
