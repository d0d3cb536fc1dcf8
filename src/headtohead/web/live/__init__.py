"""The state of running experiments, watched and rendered for the web app."""
