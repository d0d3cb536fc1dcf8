"""What runs leave behind: their output, files with metrics, and scores per example."""
