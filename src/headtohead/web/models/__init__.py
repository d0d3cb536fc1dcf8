"""Models of the web app, loaded in one child process."""
