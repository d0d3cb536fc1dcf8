"""Compare training scripts: run two or more commands or git revisions over seeds and judge a metric they report."""
