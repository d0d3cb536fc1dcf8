"""Compare training scripts: run commands or git revisions over several seeds, and judge a reported metric."""
