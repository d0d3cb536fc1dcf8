"""The web app's models, loaded in one child process."""
